"""Which Node gets a providerID that several would have: evidence about the others, and the order of joins."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from libs.common.bus.protocol import Message, StreamPosition, UnreadablePayload
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import Event, NodeEnriched
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.node import Node, NodeCondition
from services.labeler.core.blocker import RETRY_SECONDS
from services.labeler.core.instance_metadata import InstanceMetadataIndex
from services.labeler.core.plan.plan import ClusterConfig, ProviderIDConflict
from services.labeler.core.plan.plan_node import plan_node
from services.labeler.core.provider_id_index import SETTLE_SECONDS, ProviderIDIndex, judge_holder
from tests.builders import (
    NOW,
    STREAM_ID,
    make_facts,
    make_message,
    make_node,
    make_node_enriched,
    make_node_gone,
    make_node_observed,
    make_unreachable,
)
from tests.clocks import ManualClock
from tests.named_machines import HCLOUD, make_instance_metadata
from tests.node_plans import compile_one_rule

ID = "vm://c/7"
SAME_FOR_ALL = compile_one_rule(platformMetadata=f"{{ProviderID: '{ID}'}}")
BY_INSTANCE = compile_one_rule(platformMetadata="{ProviderID: 'vm://c/{{ .InstanceID }}'}")
BY_ZONE = compile_one_rule(platformMetadata="{ProviderID: 'vm://c/{{ .Zone }}'}")
IN_ZONE = "vm://c/fsn1-dc14"
UUID, OTHER_UUID = "4c4c4544-0042-3510-8056-b7c04f595831", "bf075752-a294-564c-a181-58285d003c17"


def ready(status: str, minutes: int) -> tuple[NodeCondition, ...]:
    since = (NOW - timedelta(minutes=minutes)).isoformat().replace("+00:00", "Z")
    return (NodeCondition(type="Ready", status=status, last_transition_time=since),)


def holder(**fields: Any) -> Node:
    return make_node("old", **{"uid": "uid-old", "taints": (), "provider_id": ID, **fields})


WRONG = MachineFault(kind="wrong_machine", step="Nodename", message="it has node name new, not old")
NEW = make_node("new", uid="uid-new", system_uuid=UUID)
FACTS = make_facts(node_name="new")


@pytest.mark.parametrize(
    ("node", "report", "why"),
    [
        # another machine answers as that Node
        (holder(), make_node_enriched(holder(), make_facts(node_name="old")), "machine old answers as that"),
        (holder(system_uuid=UUID), make_node_enriched(holder(), make_facts(node_name="old")), "answers as"),
        # errors and timeouts prove nothing while its kubelet reports
        (holder(conditions=ready("True", 0)), make_unreachable(holder()), "kubelet of that Node is Ready"),
        (
            holder(system_uuid=OTHER_UUID, conditions=ready("True", 0)),
            make_unreachable(holder(), fault=WRONG),
            "kubelet of that Node is Ready",
        ),
        (holder(), None, "metadata has not reported"),
        (holder(), make_node_enriched(make_node("old", uid="former"), FACTS), "metadata has not reported"),
        (
            holder(system_uuid=OTHER_UUID, conditions=ready("Unknown", 1)),
            make_unreachable(holder()),
            "may only be restarting",
        ),
        # a board without a usable systemUUID
        (holder(conditions=ready("Unknown", 1)), make_unreachable(holder()), "may only be restarting"),
        # a kubelet wrote the systemUUID of a machine elsewhere, whose Talos has another name than its Node
        (
            holder(ip="10.0.0.9", system_uuid=UUID, conditions=ready("True", 0)),
            make_unreachable(holder(ip="10.0.0.9"), fault=WRONG),
            "kubelet of that Node is Ready",
        ),
        # stale: the same machine, or one that is gone
        (holder(), make_node_enriched(holder(), FACTS), ""),
        (holder(), make_unreachable(holder()), ""),
        (holder(system_uuid=UUID, conditions=ready("Unknown", 1)), make_unreachable(holder()), ""),
        (holder(system_uuid=UUID, conditions=ready("True", 0)), make_unreachable(holder(), fault=WRONG), ""),
        (holder(system_uuid=UUID, conditions=ready("Unknown", 1)), None, ""),
        (holder(system_uuid=OTHER_UUID, conditions=ready("Unknown", 11)), make_unreachable(holder()), ""),
        (holder(conditions=ready("Unknown", 11)), make_unreachable(holder()), ""),
        # a Node that metadata does not query
        (holder(ip="", conditions=ready("True", 60)), None, "kubelet of that Node is Ready"),
        (holder(ip=""), None, ""),
    ],
)
def test_a_node_keeps_its_provider_id_while_its_own_machine_may_exist(
    node: Node, report: Event | None, why: str
):
    found = judge_holder(NEW, FACTS, node, report)
    assert why in found
    assert bool(found) is bool(why)


class Replica:
    """The index of one replica, which follows the flow."""

    def __init__(self, config: ClusterConfig, *, has_account: bool = False) -> None:
        self.clock, self.config = ManualClock(), config
        self.cache = StreamCache(clock=self.clock, on_message=self._on_message)
        self.metadata = InstanceMetadataIndex({"prod": HCLOUD.provider} if has_account else {})
        self.index = ProviderIDIndex(self.cache, lambda: self.config, self.clock, self.metadata)
        self._sequence = 0
        self.cache.start_replay(StreamPosition(stream_id=STREAM_ID, last_sequence=0))
        self.cache.finish_replay()

    def _on_message(self, message: Message) -> None:
        self.index.apply(message.event)
        self.metadata.apply(message.event)

    def hear(self, *events: Event) -> None:
        for event in events:
            self._sequence += 1
            self.cache.apply(make_message(event, sequence=self._sequence))

    def join(self, *numbers: int, **facts: Any) -> None:
        for number in numbers:
            node = joining(number)
            self.hear(make_node_observed(node), make_node_enriched(node, facts_of(number, **facts)))

    def join_server(self, number: int) -> NodeEnriched:
        """A machine joins that names server 471<number>, of which its account has reported nothing yet."""
        node, ip = joining(number), f"192.0.2.{number}"
        event = make_node_enriched(node, HCLOUD.make_facts(f"471{number}", node_ip=ip, node_name=node.name))
        self.hear(make_node_observed(node), event)
        return event

    def supply(self, number: int) -> None:
        """Apply what the account reports about that server."""
        supplied = make_instance_metadata(
            f"hcloud://471{number}",
            name=f"web-{number}",
            node_uid=f"uid-{number}",
            addresses=(f"192.0.2.{number}",),
        )
        self.metadata.apply_metadata(supplied)

    def may_write_supplied(self, event: NodeEnriched, provider_id: str) -> bool:
        facts = self.metadata.complete(event).facts
        found = self.index.find_conflict(event.node, facts, provider_id)
        return found is None or not found.why_withheld

    def conflict_of(self, number: int, provider_id: str = ID) -> ProviderIDConflict | None:
        return self.index.find_conflict(joining(number), facts_of(number), provider_id)

    def may_write(self, number: int, provider_id: str = ID) -> bool:
        found = self.conflict_of(number, provider_id)
        return found is None or not found.why_withheld


def joining(number: int, **fields: Any) -> Node:
    return make_node(f"web-{number}", uid=f"uid-{number}", **fields)


def facts_of(number: int, **facts: Any) -> MachineFacts:
    return make_facts(node_name=f"web-{number}", **facts)


def test_only_the_first_created_of_nodes_with_the_same_future_id_gets_it():
    replica = Replica(SAME_FOR_ALL)
    replica.join(1, 2, 3)
    assert not any(map(replica.may_write, (1, 2, 3)))  # another replica may write a younger one now
    replica.clock.advance(SETTLE_SECONDS)
    assert [replica.may_write(number) for number in (1, 2, 3)] == [True, False, False]
    found = replica.conflict_of(3)
    assert found is not None
    assert found.other == "web-1"
    written = joining(1, provider_id=ID, taints=())
    replica.hear(make_node_observed(written), make_node_enriched(written, facts_of(1)))
    found = replica.conflict_of(2)
    assert found is not None
    assert (found.other, found.why_withheld) == ("web-1", "machine web-1 answers as that Node")


def test_the_first_created_waits_for_a_write_that_was_planned_before_its_message():
    replica = Replica(SAME_FOR_ALL)
    replica.join(2)
    assert replica.may_write(2)  # another replica may write it now
    replica.join(1)
    assert (replica.may_write(1), replica.may_write(2)) == (False, False)
    replica.clock.advance(SETTLE_SECONDS)
    assert (replica.may_write(1), replica.may_write(2)) == (True, False)
    replica.hear(make_node_observed(joining(2, provider_id=ID)))
    assert not replica.may_write(1)


def test_nothing_is_written_while_another_node_may_have_the_id():
    replica = Replica(BY_INSTANCE)
    replica.join(1, instance_id="7")
    unreadable = UnreadablePayload(reason="newer version", payload=b"{}")
    for number in (1, 2, 3, 4, 5):
        message = make_message(make_node_observed(joining(number)), sequence=10 + number)
        replica.cache.apply(msgspec.structs.replace(message, event=unreadable))
    facts = facts_of(1, instance_id="7")
    plan = plan_node(joining(1), facts, "nodename", BY_INSTANCE)
    blocked = replica.index.withhold_from(plan, joining(1), facts).blocker
    assert blocked is not None
    assert (blocked.reason, blocked.reason in RETRY_SECONDS) == ("WaitingForOtherNodes", True)
    assert f"{ID!r} may belong to Node web-2 or web-3 or web-4 or 1 more: " in blocked.message
    for number in (2, 3, 4, 5):
        replica.cache.apply(make_message(make_node_observed(joining(number)), sequence=20 + number))
    assert replica.index.withhold_from(plan, joining(1), facts) is plan, "its own message does not matter"


def test_a_node_that_is_gone_or_does_not_answer_any_more_claims_nothing():
    replica = Replica(SAME_FOR_ALL)
    replica.join(1, 2)
    assert not replica.may_write(2)
    replica.hear(make_unreachable(joining(1)))
    assert replica.may_write(2)
    replica.join(1)
    assert not replica.may_write(2)
    replica.hear(make_node_gone(joining(1)))
    assert replica.may_write(2)


def test_nodes_that_get_the_same_id_by_what_an_account_supplies_are_compared():
    replica = Replica(BY_ZONE, has_account=True)
    first, second = replica.join_server(1), replica.join_server(2)
    assert replica.may_write_supplied(first, "vm://c/other")  # derives both, without a zone
    replica.supply(1)
    replica.supply(2)
    assert not replica.may_write_supplied(second, IN_ZONE)
    replica.clock.advance(SETTLE_SECONDS)
    assert not replica.may_write_supplied(second, IN_ZONE)
    replica.may_write_supplied(first, IN_ZONE)  # may wait for the write of the second one
    replica.clock.advance(SETTLE_SECONDS)
    assert replica.may_write_supplied(first, IN_ZONE)


def test_what_an_account_no_longer_supplies_is_claimed_no_more():
    replica = Replica(ClusterConfig(), has_account=True)
    replica.join_server(1)
    replica.supply(1)
    replica.join(2, platform="hcloud", provider_id="hcloud://4711")
    assert not replica.may_write(2, "hcloud://4711")
    replica.metadata.clear_metadata()
    assert replica.may_write(2, "hcloud://4711")
    replica.supply(1)
    assert not replica.may_write(2, "hcloud://4711")


def test_new_rules_change_which_nodes_will_have_the_same_id():
    replica = Replica(BY_INSTANCE)
    replica.join(1, instance_id="1")
    replica.join(2, instance_id="2")
    assert (replica.may_write(1, "vm://c/1"), replica.may_write(2, "vm://c/2")) == (True, True)
    replica.config = SAME_FOR_ALL
    assert not replica.may_write(2)
    replica.config = BY_INSTANCE
    assert replica.may_write(2, "vm://c/2")


@pytest.mark.parametrize(
    ("provider_id", "same"),
    [
        ("azure:///vm/ABC", "azure:///vm/abc"),
        ("ocid1.instance.oc1.a", "oci://ocid1.instance.oc1.a"),
        ("openstack://RegionOne/0c1e", "openstack:///0c1e"),
    ],
)
def test_two_forms_of_an_id_that_name_the_same_machine_are_the_same(provider_id: str, same: str):
    replica = Replica(ClusterConfig())
    old = make_node("old", uid="uid-old", taints=(), provider_id=provider_id)
    replica.hear(make_node_observed(old), make_node_enriched(old, make_facts(node_name="old")))
    assert not replica.may_write(1, same)
    assert replica.may_write(1, "aws:///z/i-1")
