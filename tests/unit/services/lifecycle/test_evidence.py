"""What one look proves, and what a Node must be for it to be deleted."""

from collections.abc import Iterable
from datetime import timedelta

import msgspec
import pytest
from msgspec.structs import replace

from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import ForeignMachine, MachineFault
from libs.common.contract.node import Node, NodeAddress
from services.lifecycle.core.evidence import Assessment, MachineIndex, assess_node, assess_report
from services.lifecycle.core.node_index import NodeIndex
from tests.builders import NOW, UNINITIALIZED, make_node
from tests.lifecycle_actors import (
    NEW_UUID,
    OWN_UUID,
    make_answering,
    make_foreign_machine,
    make_lost_node,
    make_ready_condition,
    make_unreachable,
)

NOT_READY_FOR = timedelta(minutes=5)
NODE = make_lost_node()
NEW = make_node("new-1", uid="uid-new", taints=(), system_uuid=NEW_UUID)
UUID_BYTES_SWAPPED = "5e1a2f3c-9d7b-604e-8f12-0a1b2c3d4e5f"  # as some firmware tells OWN_UUID
NO_TIMES = (
    None,
    "",
    "yesterday",
    "0000-01-01T00:00:00Z",
    "10000-01-01T00:00:00Z",
    "2026-02-30T00:00:00Z",
    "2026-01-01 00:00:00Z",
    "2026-01-01T00:00:00+01:00",
    "1700000000",
)
JUNK = ("", "00000000-0000-0000-0000-000000000000", "03000200-0400-0500-0006-000700080009", "nonsense")


def machines_of(
    nodes: Iterable[Node] = (NODE,), words: Iterable[NodeEnriched | NodeUnreachable] = ()
) -> MachineIndex:
    index = NodeIndex()
    for node in nodes:
        index.upsert_node(node)
    for word in words:
        index.upsert_report(word, 0.0)
    return index.machines


def look(
    *machines: ForeignMachine,
    node: Node = NODE,
    nodes: tuple[Node, ...] = (NODE, NEW),
    words: tuple[NodeEnriched | NodeUnreachable, ...] = (),
) -> Assessment:
    """Judged with all Nodes known, and what else metadata said."""
    word = make_unreachable(node, foreign_machines=machines)
    return assess_report(node, word, machines_of(nodes, (word, *words)))


def test_another_machine_with_another_name_and_uuid_at_each_address_is_proof():
    judged = look(make_foreign_machine(), make_foreign_machine(address="fd00::5"))
    assert judged.missing == ()
    assert judged.proven == (
        "at 10.0.0.5 answers the machine of new-1 with another UUID",
        "at fd00::5 answers the machine of new-1 with another UUID",
        "no machine known to us bears its name",
    )


@pytest.mark.parametrize("kind", ["refused", "timeout", "not_found", "certificate", "permission", "invalid",
                                  "no_endpoint", "bad_node_ip", "internal", "wrong_machine"])  # fmt: skip
def test_a_look_that_failed_proves_nothing_whatever_the_failure(kind: str):
    fault = msgspec.convert({"kind": kind, "step": "connect", "message": "it failed"}, MachineFault)
    (lack,) = assess_report(NODE, make_unreachable(NODE, fault=fault), machines_of()).missing
    assert "silence and errors prove nothing" in lack
    assert lack.endswith(f"({kind})")


def test_a_fault_of_another_kind_takes_the_proof_from_who_answered():
    fault = MachineFault(kind="timeout", step="Nodename", message="too slow")
    assert assess_report(
        NODE,
        make_unreachable(NODE, foreign_machines=(make_foreign_machine(),), fault=fault),
        machines_of(),
    ).missing


def test_a_word_about_another_node_of_that_name_proves_nothing():
    former = make_lost_node(uid="uid-0")
    assert assess_report(
        NODE,
        make_unreachable(former, foreign_machines=(make_foreign_machine(),)),
        machines_of(),
    ).missing
    assert assess_report(NODE, None, machines_of()).missing
    assert assess_report(NODE, make_answering(NODE), machines_of()).missing == ("its machine answers",)


@pytest.mark.parametrize("uuid", [*JUNK, OWN_UUID, OWN_UUID.upper(), UUID_BYTES_SWAPPED])
def test_a_machine_whose_uuid_is_junk_or_the_nodes_own_may_be_the_same_one(uuid: str):
    assert len(look(make_foreign_machine(uuid=uuid)).missing) == 1


@pytest.mark.parametrize("uuid", [OWN_UUID.upper(), UUID_BYTES_SWAPPED])
def test_the_nodes_own_uuid_is_reported_as_such_in_either_spelling(uuid: str):
    assert "it has this Node's systemUUID" in look(make_foreign_machine(uuid=uuid), nodes=()).missing[0]


@pytest.mark.parametrize("uuid", JUNK)
def test_a_node_whose_own_uuid_could_be_anybodys_is_never_proven_gone(uuid: str):
    node = make_lost_node(system_uuid=uuid)
    assert (
        "could be that of any machine"
        in look(make_foreign_machine(), node=node, nodes=(node, NEW)).missing[0]
    )


def test_a_uuid_that_a_third_node_claims_tells_no_machine_from_another():
    third = make_node("third", uid="uid-3", system_uuid=NEW_UUID.upper())
    assert ("Node third claims its UUID as well") in look(
        make_foreign_machine(), nodes=(NODE, NEW, third)
    ).missing[0]
    assert look(make_foreign_machine(), nodes=(NODE, third)).missing, (
        "nor where the machine's own Node is not there"
    )
    assert not look(make_foreign_machine(), nodes=(NODE,)).missing


def test_a_node_whose_own_uuid_another_one_claims_may_live_on_under_that_name():
    renamed = make_node("web-1b", uid="uid-4", ip="10.0.0.9", system_uuid=UUID_BYTES_SWAPPED)
    (lack,) = look(make_foreign_machine(), nodes=(NODE, NEW, renamed)).missing
    assert lack == "Node web-1b claims its systemUUID as well: its machine may live on"


@pytest.mark.parametrize(
    "now",
    [
        make_lost_node(addresses=(NodeAddress(type="InternalIP", address="10.0.0.9"),)),
        make_lost_node(ip="10.0.0.9"),
        make_lost_node(system_uuid="5d3c2b1a-7b9d-4e60-8f12-0a1b2c3d4e5f"),
    ],
    ids=["moved", "another node IP", "another UUID"],
)
def test_a_look_at_the_node_as_it_was_proves_nothing_of_it_as_it_is(now: Node):
    word = make_unreachable(NODE, foreign_machines=(make_foreign_machine(),))
    assert assess_report(NODE, word, machines_of([NODE, NEW], [word])).missing == ()
    (lack,) = assess_report(now, word, machines_of([now, NEW], [word])).missing
    assert lack.startswith("a poll after the last change of its addresses")


@pytest.mark.parametrize("name", ["", "web-1"])
def test_a_machine_that_bears_no_other_name_proves_nothing(name: str):
    assert look(make_foreign_machine(name)).missing


def test_one_address_without_proof_takes_it_from_all():
    assert len(look(make_foreign_machine(), make_foreign_machine(address="fd00::5", uuid="")).missing) == 1


def test_a_machine_of_that_name_anywhere_takes_the_proof():
    elsewhere = make_answering(NEW, node_name="web-1")
    (lack,) = look(make_foreign_machine(), words=(elsewhere,)).missing
    assert lack == "a machine with its name answers at an address of Node new-1"
    swapped = make_unreachable(NEW, foreign_machines=(make_foreign_machine("web-1", address="10.0.0.6"),))
    assert look(make_foreign_machine(), words=(swapped,)).missing == (lack,), (
        "two machines took each other's address"
    )


# ---- the Node itself


def test_a_node_that_is_not_ready_for_longer_than_five_minutes_may_be_deleted():
    assert assess_node(NODE, NOW, min_not_ready=NOT_READY_FOR).missing == ()
    just = make_lost_node(
        conditions=(make_ready_condition("Unknown", NOW - NOT_READY_FOR - timedelta(seconds=1)),)
    )
    assert assess_node(just, NOW, min_not_ready=NOT_READY_FOR).missing == ()


@pytest.mark.parametrize(
    "node",
    [
        make_lost_node(conditions=()),
        make_lost_node(conditions=(make_ready_condition("True"),)),
        make_lost_node(conditions=(make_ready_condition("False"),)),  # its kubelet says so: it lives
        make_lost_node(conditions=(make_ready_condition("Sometimes"),)),
        make_lost_node(conditions=(make_ready_condition(since=NOW - NOT_READY_FOR),)),
        make_lost_node(conditions=(make_ready_condition(since=NOW + timedelta(hours=1)),)),
        *(make_lost_node(conditions=(make_ready_condition(since=text),)) for text in NO_TIMES),
        make_lost_node(taints=(UNINITIALIZED,)),
        replace(NODE, metadata=replace(NODE.metadata, deletion_timestamp=NOW)),
    ],
)
def test_any_doubt_about_the_node_keeps_it(node: Node):
    assert len(assess_node(node, NOW, min_not_ready=NOT_READY_FOR).missing) == 1


def test_a_time_that_is_yet_to_come_is_reported_as_such():
    node = make_lost_node(conditions=(make_ready_condition(since=NOW + timedelta(hours=1)),))
    assert assess_node(node, NOW, min_not_ready=NOT_READY_FOR).missing == (
        "it is not Ready since 2026-03-01T13:00:00Z, which is in the future",
    )
