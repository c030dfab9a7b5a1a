"""Which machines' instances are asked for, and when."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from libs.clouds.instances import Deleted, Instance, InstanceAddress, NotFound
from libs.common.contract.events import InstanceMetadata
from services.cloud.core.named_machines import NamedMachine, NamedMachines, build_metadata
from tests.builders import NOW, STREAM_ID, make_node, make_node_enriched, make_unreachable
from tests.clouds.cloud_rounds import SILENCE, make_instance, make_query
from tests.named_machines import HCLOUD

ADDRESSES = (InstanceAddress("192.0.2.5"), InstanceAddress("10.0.0.5", "9"), InstanceAddress("10.0.0.7", "8"))
SERVER = msgspec.structs.replace(
    make_instance("4711"), zone="fsn1-dc14", instance_type="cx22", addresses=ADDRESSES
)


def parse_hetzner_id(provider_id: str) -> str | None:
    return provider_id.partition("://")[2] or None


class Machines:
    """The table after events of metadata about web-1."""

    def __init__(self) -> None:
        self.table = NamedMachines("hcloud", parse_hetzner_id)

    def enrich(
        self, serial_number: str = "4711", *, uid: str = "uid-1", at: float = 0.0, **node: Any
    ) -> None:
        facts = HCLOUD.make_facts(serial_number or "none", queried_at=NOW + timedelta(seconds=at))
        self.table.apply(make_node_enriched(make_node("web-1", uid=uid, **node), facts))

    def is_due(self, now: float) -> bool:
        return bool(self.table.select_due(now))

    def record(self, found: Any = SERVER, *, now: float = 0.0, asked_at: float = 1.0) -> bool:
        [machine] = self.table.list_named(frozenset({"4711"}))
        return self.table.record(machine, answer(machine, found, asked_at), now)


def answer(machine: NamedMachine, found: Any, asked_at: float = 1.0, network: str = "") -> InstanceMetadata:
    query = make_query(asked_at)
    return build_metadata(machine, found, query, account="prod", stream_id=STREAM_ID, network=network)


@pytest.fixture
def machines() -> Machines:
    machines = Machines()
    machines.enrich()
    return machines


def test_a_machine_is_asked_for_once_at_first_and_less_and_less_often_while_its_node_waits(
    machines: Machines,
):
    now = 0.0
    for seconds in (60.0, 120.0, 240.0, 480.0, 600.0, 600.0):
        assert machines.is_due(now)
        machines.record(now=now)
        assert not machines.is_due(now + seconds - 1.0)
        now += seconds


def test_a_machine_whose_node_waits_for_weeks_is_still_asked_for(machines: Machines):
    for count in range(2000):
        machines.record(now=600.0 * count)
    assert not machines.is_due(600.0 * count + 599.0)
    assert machines.is_due(600.0 * count + 600.0)


def test_a_machine_that_was_reached_again_is_asked_for_soon(machines: Machines):
    machines.record(now=0.0, asked_at=1.0)
    machines.enrich(at=2.0)
    assert not machines.is_due(9.0)
    assert machines.is_due(10.0)


@pytest.mark.parametrize("change", [{"uid": "uid-2"}, {"serial_number": "4712"}], ids=["node", "instance"])
def test_another_node_or_instance_is_asked_for_at_once(machines: Machines, change: dict[str, str]):
    machines.record()
    machines.enrich(**change)  # type: ignore[arg-type]
    assert machines.is_due(0.0)


def test_a_node_with_a_provider_id_is_asked_for_once(machines: Machines):
    machines.enrich(provider_id="hcloud://4711")
    assert machines.is_due(0.0)
    assert machines.record()
    assert not machines.is_due(10_000.0)


def test_a_listed_instance_is_published_if_the_node_waits_or_it_has_changed(machines: Machines):
    assert machines.record()
    assert machines.record(asked_at=2.0)
    machines.enrich(provider_id="hcloud://4711")
    assert not machines.record(asked_at=3.0)
    assert machines.record(msgspec.structs.replace(SERVER, instance_type="cx32"), asked_at=4.0)


def test_a_machine_that_names_nothing_more_is_forgotten_and_a_silent_one_is_not(machines: Machines):
    machines.table.apply(make_unreachable(make_node("web-1")))
    assert machines.is_due(0.0)
    machines.enrich("")
    assert not machines.is_due(0.0)


def test_an_instance_supplies_what_the_native_controller_writes(machines: Machines):
    [machine] = machines.table.select_due(0.0)
    found = answer(machine, SERVER)
    assert (found.provider_id, found.node_uid, found.why_withheld) == ("hcloud://4711", "uid-1", "")
    assert (found.region, found.zone, found.instance_type) == ("fsn1", "fsn1-dc14", "cx22")


@pytest.mark.parametrize(
    ("network", "addresses"), [("", ("192.0.2.5",)), ("9", ("192.0.2.5", "10.0.0.5")), ("7", ("192.0.2.5",))]
)
def test_a_private_address_counts_only_in_the_configured_network(
    machines: Machines, network: str, addresses: tuple[str, ...]
):
    [machine] = machines.table.select_due(0.0)
    assert answer(machine, SERVER, network=network).addresses == addresses


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (NotFound(), "it has no instance 4711"),
        (Deleted(), "it has no instance 4711"),
        (make_instance("4712"), "it has no instance 4711"),
        (SILENCE, "no answer within 15 s"),
        (msgspec.structs.replace(SERVER, is_shut_down=True), "instance 4711 is shut down"),
    ],
    ids=["not-found", "deleted", "another-one", "silence", "shut-down"],
)
def test_without_that_exact_instance_nothing_is_supplied(machines: Machines, found: Instance, why: str):
    [machine] = machines.table.select_due(0.0)
    withheld = answer(machine, found)
    assert withheld.why_withheld == why
    assert (withheld.region, withheld.zone, withheld.instance_type, withheld.addresses) == ("", "", "", ())
