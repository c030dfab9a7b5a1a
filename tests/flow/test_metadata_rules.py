"""The metadata service polls what the rules of the --cloud-config file need, and follows the file."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from libs.common.contract.events import NodeEnriched
from libs.common.contract.machine import AddressStatus, Inventory, MachineFault, Processors
from libs.common.settings.read_settings import read_settings
from services.metadata.service import MetadataService
from services.metadata.settings import MetadataSettings
from tests.builders import make_facts, make_node
from tests.bus_actors import wait_until
from tests.flow_actors import FlowActor
from tests.metadata_actors import ScriptedTalos, run_metadata

NO_RULES = "global: {}\n"
BY_VERSION = "transformations: [{labels: {talos: '{{ .TalosVersion }}'}}]\n"
BY_CPU = """transformations:
  - nodeSelector: [{matchExpressions: [{key: cpucores, operator: Gt, values: ["8"]}]}]
    labels: {talos: '{{ .TalosVersion }}'}
"""
TOLD = Inventory(talos_version="v1.13.5")


@pytest.fixture
def talos() -> ScriptedTalos:
    machines = ScriptedTalos(make_facts())
    machines.inventories["10.0.0.5"] = Inventory(talos_version="v1.13.5", processors=Processors(cores=16))
    return machines


def write(path: Path, text: str) -> None:
    path.write_text(text)


@asynccontextmanager
async def running(url: str, talos: ScriptedTalos, path: Path, text: str) -> AsyncIterator[MetadataService]:
    """Run metadata with this --cloud-config file."""
    write(path, text)
    settings = read_settings([MetadataSettings], [f"--cloud-config={path}"], {}).get(MetadataSettings)
    settings = msgspec.structs.replace(settings, watches_opened_after_seconds=0.0)
    async with run_metadata(url, talos, settings) as service:
        yield service


def tells(inventory: Inventory | None):
    return lambda event: event.facts.inventory == inventory


async def test_parts_that_rules_name_are_queried_once_and_published(stream, talos, tmp_path):
    async with running(stream.url, talos, tmp_path / "config", BY_VERSION):
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
        assert event.facts.inventory == TOLD
        await wait_until(lambda: talos.watching["10.0.0.5"] == 1)
        talos.put(make_facts(zone="b"))
        event = await stream.wait_for_enriched(
            "web-1", NodeEnriched, lambda event: event.facts.platform.zone == "b"
        )
        assert event.facts.inventory == TOLD, "it is kept"
    assert talos.asked == [("10.0.0.5", frozenset({"Version"}))]


async def test_a_changed_file_with_further_parts_takes_effect_within_seconds(stream, talos, tmp_path, caplog):
    names = [f"w-{i}" for i in range(5)]
    for i, name in enumerate(names):
        ip = f"10.0.7.{i + 1}"
        talos.put(make_facts(node_name=name, node_ip=ip))
        talos.inventories[ip] = talos.inventories["10.0.0.5"]
    path = tmp_path / "config"
    async with running(stream.url, talos, path, BY_VERSION) as service:
        await told_of_all(stream, names, TOLD)
        write(path, BY_CPU)
        more = msgspec.structs.replace(TOLD, processors=Processors(cores=16))
        await told_of_all(stream, names, more, again=False)
        assert {parts for _, parts in talos.asked} == {frozenset({"Version"}), frozenset({"Processor"})}

        write(path, "transformations: [{labels: 7}]\n")
        await wait_until(
            lambda: any(record.message.startswith("invalid --cloud-config file") for record in caplog.records)
        )
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
        assert event.facts.inventory == more, "a bad file leaves the need as it was"
        assert not any("file" in problem for problem in service.problems()), "the labeler tells of it"


async def told_of_all(
    stream: FlowActor, names: list[str], inventory: Inventory | None, *, again: bool = True
):
    for i, name in enumerate(names):
        if again:
            await stream.publish_node(make_node(name, uid=name, ip=f"10.0.7.{i + 1}"))
        await stream.wait_for_enriched(name, NodeEnriched, tells(inventory))


async def test_the_preferred_address_family_can_change_at_run_time(stream, talos, tmp_path):
    both = tuple(AddressStatus(address=each, link="eth0") for each in ("10.0.0.5/24", "fd00::5/64"))
    for ip in ("10.0.0.5", "fd00::5"):
        talos.put(make_facts(node_ip=ip, addresses=both))
    path = tmp_path / "config"
    async with running(stream.url, talos, path, NO_RULES):
        await stream.publish_node(make_node(ip="10.0.0.5,fd00::5"))
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
        assert event.facts.node_ip == "10.0.0.5"
        write(path, "global: {preferIPv6: true}\n")
        await stream.wait_for_enriched("web-1", NodeEnriched, lambda event: event.facts.node_ip == "fd00::5")
        assert talos.looks == ["10.0.0.5", "fd00::5"]


async def test_a_part_that_the_talos_role_may_not_read_delays_no_node(stream, talos, tmp_path, caplog):
    talos.part_faults["Version"] = MachineFault(kind="permission", step="Version", message="os:reader needed")
    async with running(stream.url, talos, tmp_path / "config", BY_CPU):
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
        assert event.facts.inventory == Inventory(processors=Processors(cores=16))
        await wait_until(lambda: talos.watching["10.0.0.5"] == 1)
        talos.put(make_facts(zone="b"))
        await stream.wait_for_enriched("web-1", NodeEnriched, lambda event: event.facts.platform.zone == "b")
    said = [record for record in caplog.records if "inventory part missing" in record.message]
    assert len(said) == 1
