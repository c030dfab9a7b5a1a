"""The metadata service with machines on COSI's own server and Talos's own types, over a real nats-server."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import Inventory, Processors
from libs.testbed.machine_fleet import (
    Extension,
    MachineFleet,
    Processor,
    make_machine,
)
from services.metadata.service import MetadataService
from services.metadata.settings import MetadataSettings
from tests.builders import make_node
from tests.bus_actors import wait_until
from tests.metadata_actors import CALM, run_metadata

UUID = "4c4c4544-0037-4b10-8057-b2c04f4d4e31"


@pytest.fixture
async def talos(tmp_path: Path) -> AsyncIterator[MachineFleet]:
    """Machines of one's own: these tests cut the endpoint."""
    async with MachineFleet.start(tmp_path / "machines") as machines:
        yield machines


@pytest.fixture
def settings(talos: MachineFleet) -> MetadataSettings:
    return msgspec.structs.replace(CALM, talosconfig=talos.write_talosconfig())


def looked_since_watched(service: MetadataService, name: str) -> bool:
    """Whether the watch is open, and the look that it asked for, if it did, is over."""
    known = service._node_controller.reconcilers[name].state
    return known.is_watched and known.polled_at > known.machine_changed_at


async def test_what_rules_name_is_asked_of_real_machines_and_an_upgrade_is_noticed(
    nats_server, stream, talos, settings
):
    labels = "{v: '{{ .TalosVersion }}', s: '{{ .Schematic }}', c: '{{ .CPUCores }}'}"
    rule = f"transformations: [{{labels: {labels}}}]"
    ruled = msgspec.structs.replace(settings, cloud_config=parse_cloud_config(rule, "config"))
    await talos.put_machines(
        make_machine(
            "web-1",
            "10.0.0.5",
            talos_version="v1.13.5",
            extensions=(Extension(name="schematic", version="376567"),),
            processors=(Processor(),),
        )
    )
    async with run_metadata(nats_server.url, None, ruled) as service:
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
        assert event.facts.inventory == Inventory(
            talos_version="v1.13.5",
            extensions={"schematic": "376567"},
            processors=Processors(manufacturer="QEMU", model="pc-q35-9.0", sockets=1, cores=2, threads=2),
        )
        await wait_until(lambda: service._node_controller.reconcilers["web-1"].state.is_watched)
        await talos.set_faults("web-1", unavailable=True)  # it reboots
        await stream.wait_for_enriched("web-1", NodeUnreachable)
        await talos.change_machine("web-1", talos_version="v1.14.0")
        await talos.set_faults("web-1")
        event = await stream.wait_for_enriched("web-1", NodeEnriched, seconds=15.0)
        assert event.facts.inventory is not None
        assert event.facts.inventory.talos_version == "v1.14.0"


async def test_an_endpoint_that_is_away_makes_us_unready_and_its_return_heals_all(
    nats_server, stream, talos, settings
):
    names = [f"web-{i}" for i in range(20)]
    await talos.put_machines(*(make_machine(name, f"10.0.1.{i + 1}") for i, name in enumerate(names)))
    await talos.cut_endpoint(0)
    async with run_metadata(nats_server.url, None, settings) as service:
        await stream.publish_snapshot(20)
        for i, name in enumerate(names):
            await stream.publish_node(make_node(name, uid=name, ip=f"10.0.1.{i + 1}"))
        for name in names:
            event = await stream.wait_for_enriched(name, NodeUnreachable)
            assert talos.endpoints[0] in event.fault.message
        await wait_until(lambda: any(talos.endpoints[0] in problem for problem in service.problems()))
        await wait_until(
            lambda: all(node.state.failures for node in service._node_controller.reconcilers.values())
        )
        await talos.restore_endpoint(0)
        for name in names:
            await stream.wait_for_enriched(name, NodeEnriched)
        await wait_until(lambda: service.problems() == ())


async def test_without_credentials_it_waits_and_goes_on_when_they_come(nats_server, stream, talos, tmp_path):
    await talos.put_machines(make_machine("web-1", "10.0.0.5"))
    late = tmp_path / "late" / "config"
    late.parent.mkdir()
    settings = MetadataSettings(talosconfig=late, probe_seconds=0.2)
    async with run_metadata(nats_server.url, None, settings) as service:
        await stream.publish_snapshot()
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeUnreachable)
        assert event.fault.kind == "no_endpoint"
        assert str(late) in event.fault.message
        assert any(str(late) in problem for problem in service.problems())
        talos.write_talosconfig(late)
        await stream.wait_for_enriched("web-1", NodeEnriched, seconds=15.0)
        await wait_until(lambda: service.problems() == ())


async def test_a_joining_node_costs_a_known_number_of_calls(nats_server, stream, talos, settings):
    names = [f"web-{i}" for i in range(30)]
    await talos.put_machines(*(make_machine(name, f"10.0.1.{i + 1}") for i, name in enumerate(names)))
    nodes_only = msgspec.structs.replace(settings, controllers=("cloud-node",))
    async with run_metadata(nats_server.url, None, nodes_only) as service:
        for i, name in enumerate(names):
            await stream.publish_node(make_node(name, uid=name, ip=f"10.0.1.{i + 1}"))
        for name in names:
            await stream.wait_for_enriched(name, NodeEnriched)
        await wait_until(lambda: all(looked_since_watched(service, name) for name in names))
        calls = Counter[str]()
        for call, count in (await talos.count_calls()).items():
            calls[call.method] += count
    assert calls["Watch"] == 3 * len(names)
    assert calls["Get"] + calls["List"] <= 4 * len(names) + 2, "one look of four questions; the cluster once"
