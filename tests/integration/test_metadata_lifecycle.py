"""Machines that are replaced or shut down, on COSI's own server, and what metadata says of them over NATS."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from libs.common.events import NodeEnriched, NodeUnreachable
from libs.testbed.machines import Machines, a_machine, member_of
from services.metadata.settings import MetadataSettings
from tests.builders import a_node
from tests.bus_actors import eventually
from tests.metadata_actors import CALM, metadata_running

CONTROL_PLANE = a_machine("cp-1", "10.0.0.1", control_plane=True)
WEB = a_machine("web-1", "10.0.0.5")
OTHER = a_machine("web-9", "10.0.0.9")


@pytest.fixture
async def talos(tmp_path: Path) -> AsyncIterator[Machines]:
    """A control plane that discovery has told of everybody, and web-1."""
    async with Machines.start(tmp_path / "machines") as machines:
        everybody = tuple(map(member_of, (CONTROL_PLANE, WEB, OTHER)))
        await machines.put(msgspec.structs.replace(CONTROL_PLANE, members=everybody), WEB)
        yield machines


@pytest.fixture
def settings(talos: Machines) -> MetadataSettings:
    controllers = ("*", "cloud-node-lifecycle")
    return msgspec.structs.replace(CALM, talosconfig=talos.talosconfig(), controllers=controllers)


async def test_a_machine_that_another_took_the_address_of_is_said_to_be_replaced_once_discovery_forgot_it(
    nats_server, stream, talos, settings
):
    async with metadata_running(nats_server.url, None, settings):
        await stream.observe(a_node())
        await stream.once("web-1", NodeEnriched)
        await talos.delete("web-1")
        await talos.put(msgspec.structs.replace(OTHER, reachable_at=("10.0.0.5",)))
        event = await stream.once("web-1", NodeUnreachable, lambda event: event.fault.kind == "wrong_machine")
        assert event.answered_by == (), "discovery knows it still"
        assert event.last_known.node_name == "web-1"
        await talos.change("cp-1", members=(member_of(CONTROL_PLANE), member_of(OTHER)))
        await stream.observe(a_node("web-9", uid="uid-9"))
        event = await stream.once("web-1", NodeUnreachable, lambda event: bool(event.answered_by))
        (one,) = event.answered_by
        assert (one.address, one.node_name) == ("10.0.0.5", "web-9")
        assert OTHER.system_information is not None
        assert one.uuid == OTHER.system_information.uuid
        await talos.cut(0)
        event = await stream.once("web-1", NodeUnreachable, lambda event: event.fault.kind != "wrong_machine")
        assert event.answered_by == (), "silence proves nothing"


async def test_a_machine_that_shuts_down_and_is_silent_has_said_so_last(nats_server, stream, talos, settings):
    async with metadata_running(nats_server.url, None, settings) as service:
        await stream.observe(a_node())
        assert (await stream.once("web-1", NodeEnriched)).facts.stage == "running"
        await eventually(lambda: service._node_controller.reconcilers["web-1"].state.is_watched)
        await talos.change("web-1", stage="shutting down")
        await stream.once("web-1", NodeEnriched, lambda event: event.facts.stage == "shutting down")
        await talos.fault("web-1", unavailable=True)
        event = await stream.once("web-1", NodeUnreachable)
        assert event.fault.kind == "refused"
        assert event.last_known.stage == "shutting down"
        await talos.change("web-1", stage="booting")
        await talos.fault("web-1")
        assert (await stream.once("web-1", NodeEnriched)).facts.stage == "booting"
