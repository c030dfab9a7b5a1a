"""The inventory parts that polls request, how long they are kept, and which Nodes wait for them."""

import msgspec
import pytest

from libs.common.contract.machine import FaultKind, Inventory, MachineFault, Processors
from libs.talos.inventory_reading import InventoryResponse
from libs.talos.resources import Part
from services.metadata.core.inventory_state import MAX_BLOCKING_POLLS, InventoryPoll
from services.metadata.core.node_state import NodeState
from services.metadata.core.object_state import PollIntervals
from tests.builders import make_facts, make_node
from tests.unit.services.metadata.nodes.test_node_state import at, then_failed, then_observed
from tests.unit.services.metadata.nodes.test_node_state import joined as joined_as

INTERVALS = PollIntervals()
T = 1000.0  # now, monotonic
VERSION: frozenset[Part] = frozenset({"Version"})
BOTH: frozenset[Part] = frozenset({"Version", "Processor"})
NOTHING = Inventory()
PART_OF: dict[str, Part] = {"Version": "Version", "Processor": "Processor"}
CPUS = Processors(sockets=1, cores=4)


def joined() -> NodeState:
    return joined_as(make_node(ip="10.0.0.5,fd00::5"))


def fault(part: Part, kind: FaultKind) -> MachineFault:
    return MachineFault(kind=kind, step=part, message=f"{part} {kind}")


def then_polled(
    known: NodeState,
    needed: frozenset[Part] = frozenset(),
    told: Inventory = NOTHING,
    *faults: MachineFault,
    now: float = T,
    asked: frozenset[Part] | None = None,
) -> NodeState:
    """A poll that takes no time and requests the selected parts, unless `asked` names others."""
    parts = to_ask(known, needed, now) if asked is None else asked
    answer = InventoryResponse(inventory=told, faults={PART_OF[each.step]: each for each in faults})
    asking = InventoryPoll(needed_parts=needed, requested_parts=parts, answer=answer)
    return known.polled(make_facts(), None, all_nodes=[], began=now, timing=at(now), inventory_poll=asking)


def to_ask(known: NodeState, needed: frozenset[Part], now: float = T) -> frozenset[Part]:
    return known.inventory.select_parts(known.facts, needed, now=now, intervals=INTERVALS)


def then_required(
    known: NodeState,
    needed: frozenset[Part] = frozenset(),
    *,
    needs_system: bool = False,
    prefer_ipv6: bool = False,
    within: float,
) -> NodeState:
    return known.requirements_changed(
        at(T), needed=needed, needs_system=needs_system, prefer_ipv6=prefer_ipv6, within=within
    )


def inventory_of(known: NodeState) -> Inventory | None:
    assert known.facts is not None
    return known.facts.inventory


def test_parts_are_kept_between_polls_and_requested_again_twice_an_hour():
    known = then_polled(joined(), BOTH, Inventory(talos_version="v1", processors=CPUS))
    for later in (300.0, 900.0, 1400.0):
        assert to_ask(known, BOTH, T + later) == frozenset()
        known = then_polled(known, BOTH, now=T + later)
        assert inventory_of(known) == Inventory(talos_version="v1", processors=CPUS)
    assert to_ask(known, BOTH, T + 1500.0) == BOTH
    known = then_polled(known, BOTH, Inventory(talos_version="v2", processors=CPUS), now=T + 1500.0)
    assert inventory_of(known) == Inventory(talos_version="v2", processors=CPUS)
    assert to_ask(known, BOTH, T + 1800.0) == frozenset()


def test_an_empty_part_is_a_response_and_not_requested_again():
    known = then_polled(joined(), BOTH, Inventory(talos_version="", processors=Processors()))
    assert to_ask(known, BOTH, T + 60) == frozenset()
    assert inventory_of(known) == Inventory(talos_version="", processors=Processors())


def test_all_parts_are_requested_again_after_a_fault_or_the_end_of_a_watch():
    known = then_polled(joined(), VERSION, Inventory(talos_version="v1"))
    gone = then_failed(known, fault("Version", "timeout"))
    assert to_ask(gone, VERSION) == VERSION
    assert to_ask(known.watch_ended(1.0, at(T)), VERSION) == VERSION
    elsewhere = then_observed(known, make_node(ip="10.0.0.9"))
    assert to_ask(elsewhere, VERSION) == VERSION


def test_a_newly_needed_part_causes_a_poll_that_requests_only_what_is_missing():
    known = then_polled(joined(), VERSION, Inventory(talos_version="v1"))
    same = then_required(known, VERSION, within=3.0)
    assert same is known
    hurried = then_required(known, BOTH, within=3.0)
    assert hurried.next_poll_at == T + 3.0
    assert to_ask(hurried, BOTH) == {"Processor"}
    known = then_polled(hurried, BOTH, Inventory(processors=CPUS), now=T + 3)
    assert inventory_of(known) == Inventory(talos_version="v1", processors=CPUS)


def test_a_part_that_becomes_needed_during_a_poll_is_requested_soon_after_it():
    known = then_polled(joined(), BOTH, Inventory(talos_version="v1"), asked=VERSION)
    assert inventory_of(known) == Inventory(talos_version="v1")
    assert T < known.next_poll_at <= T + 1.0


def test_a_failing_part_delays_a_joining_node_for_a_few_polls_only():
    known = joined()
    timeout = fault("Processor", "timeout")
    for attempt in range(MAX_BLOCKING_POLLS):
        known = then_polled(known, BOTH, Inventory(talos_version="v1"), timeout, now=T + attempt)
        assert known.facts is None
        assert known.fault == timeout
    known = then_polled(known, BOTH, Inventory(talos_version="v1"), timeout, now=T + 9)
    assert inventory_of(known) == Inventory(talos_version="v1"), (
        "the part is unknown, the other facts are published"
    )
    waits = []
    for _ in range(8):  # it is requested again at growing intervals, and the facts are kept
        waits.append(known.next_poll_at - known.polled_at)
        known = then_polled(known, BOTH, Inventory(talos_version="v1"), timeout, now=known.next_poll_at)
        assert known.fault is None
    assert waits == sorted(waits)
    assert waits[0] < 1.0
    assert 20.0 < waits[-1] <= 30.0
    known = then_polled(known, BOTH, Inventory(talos_version="v1", processors=CPUS), now=known.next_poll_at)
    assert inventory_of(known) == Inventory(talos_version="v1", processors=CPUS)
    assert (known.inventory.missing_parts, known.inventory.incomplete_polls) == ({}, 0)


def test_a_node_with_facts_keeps_them_when_its_inventory_fails():
    known = then_polled(joined(), VERSION, Inventory(talos_version="v1"))
    known = then_polled(known, VERSION, Inventory(), fault("Version", "refused"), now=T + 1700)
    assert inventory_of(known) == Inventory(talos_version="v1"), "the last value is kept meanwhile"
    assert known.next_poll_at < T + 1702, "and it is requested again soon"


@pytest.mark.parametrize("kind", ["permission", "invalid", "internal"])
def test_a_permanently_rejected_part_delays_no_node(kind: FaultKind):
    known = then_polled(joined(), BOTH, Inventory(talos_version="v1"), fault("Processor", kind))
    assert inventory_of(known) == Inventory(talos_version="v1")
    assert set(known.inventory.missing_parts) == {"Processor"}
    assert to_ask(known, BOTH, T + 300) == frozenset()
    assert known.next_poll_at > T + 200
    assert to_ask(known, BOTH, T + 1500) == BOTH, "twice an hour: roles change, machines are upgraded"


def test_a_changed_address_family_keeps_the_facts_and_reorders_the_dial_targets():
    known = then_polled(joined())
    assert known.dial_targets == ("10.0.0.5", "fd00::5")
    turned = then_required(known, prefer_ipv6=True, within=2.0)
    assert (turned.dial_targets, turned.facts, turned.next_poll_at) == (
        ("fd00::5", "10.0.0.5"),
        known.facts,
        T + 2.0,
    )
    assert then_required(turned, prefer_ipv6=True, within=1.0) is turned
    single = msgspec.structs.replace(known, dial_targets=())
    assert then_required(single, prefer_ipv6=False, within=1.0).dial_targets == known.dial_targets


@pytest.mark.parametrize("needs_system", [True, False])
def test_a_rule_that_needs_smbios_brings_the_next_poll_forward(needs_system: bool):
    known = then_polled(joined())
    assert known.facts is not None
    assert known.facts.system is None
    after = then_required(known, needs_system=needs_system, within=6.0)
    assert (after.next_poll_at == T + 6.0) == needs_system
