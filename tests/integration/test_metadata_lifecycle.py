"""Machines that are replaced or shut down, on COSI's own server, and what metadata says of them over NATS."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.testbed.machine_fleet import MachineFleet, make_machine, make_member
from services.metadata.settings import MetadataSettings
from tests.builders import make_node
from tests.bus_actors import wait_until
from tests.metadata_actors import CALM, run_metadata

CONTROL_PLANE = make_machine("cp-1", "10.0.0.1", control_plane=True)
WEB = make_machine("web-1", "10.0.0.5")
OTHER = make_machine("web-9", "10.0.0.9")


@pytest.fixture
async def talos(tmp_path: Path) -> AsyncIterator[MachineFleet]:
    """A control plane that discovery has told of everybody, and web-1."""
    async with MachineFleet.start(tmp_path / "machines") as machines:
        everybody = tuple(map(make_member, (CONTROL_PLANE, WEB, OTHER)))
        await machines.put_machines(msgspec.structs.replace(CONTROL_PLANE, members=everybody), WEB)
        yield machines


@pytest.fixture
def settings(talos: MachineFleet) -> MetadataSettings:
    controllers = ("*", "cloud-node-lifecycle")
    return msgspec.structs.replace(CALM, talosconfig=talos.write_talosconfig(), controllers=controllers)


async def test_a_machine_that_another_took_the_address_of_is_said_to_be_replaced_once_discovery_forgot_it(
    nats_server, stream, talos, settings
):
    async with run_metadata(nats_server.url, None, settings):
        await stream.publish_node(make_node())
        await stream.wait_for_enriched("web-1", NodeEnriched)
        await talos.delete_machines("web-1")
        await talos.put_machines(msgspec.structs.replace(OTHER, reachable_at=("10.0.0.5",)))
        event = await stream.wait_for_enriched(
            "web-1", NodeUnreachable, lambda event: event.fault.kind == "wrong_machine"
        )
        assert event.foreign_machines == (), "discovery knows it still"
        assert event.last_known.node_name == "web-1"
        await talos.change_machine("cp-1", members=(make_member(CONTROL_PLANE), make_member(OTHER)))
        await stream.publish_node(make_node("web-9", uid="uid-9"))
        event = await stream.wait_for_enriched(
            "web-1", NodeUnreachable, lambda event: bool(event.foreign_machines)
        )
        (one,) = event.foreign_machines
        assert (one.address, one.node_name) == ("10.0.0.5", "web-9")
        assert OTHER.system_information is not None
        assert one.uuid == OTHER.system_information.uuid
        await talos.cut_endpoint(0)
        event = await stream.wait_for_enriched(
            "web-1", NodeUnreachable, lambda event: event.fault.kind != "wrong_machine"
        )
        assert event.foreign_machines == (), "silence proves nothing"


async def test_a_machine_that_shuts_down_and_is_silent_has_said_so_last(nats_server, stream, talos, settings):
    async with run_metadata(nats_server.url, None, settings) as service:
        await stream.publish_node(make_node())
        assert (await stream.wait_for_enriched("web-1", NodeEnriched)).facts.stage == "running"
        await wait_until(lambda: service._node_controller.reconcilers["web-1"].state.is_watched)
        await talos.change_machine("web-1", stage="shutting down")
        await stream.wait_for_enriched(
            "web-1", NodeEnriched, lambda event: event.facts.stage == "shutting down"
        )
        await talos.set_faults("web-1", unavailable=True)
        event = await stream.wait_for_enriched("web-1", NodeUnreachable)
        assert event.fault.kind == "refused"
        assert event.last_known.stage == "shutting down"
        await talos.change_machine("web-1", stage="booting")
        await talos.set_faults("web-1")
        assert (await stream.wait_for_enriched("web-1", NodeEnriched)).facts.stage == "booting"
