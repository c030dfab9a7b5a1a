"""Each waiting Node gets its reason: conditions and Events on an in-memory API server."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from libs.common.bus.protocol import StreamPosition
from libs.common.contract.events import Event
from libs.common.contract.machine import MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, Node
from libs.common.kube.errors import Forbidden
from libs.common.observability import metrics
from services.labeler.core.blocker import block_on_fault, build_condition
from services.labeler.service import LabelerService
from services.labeler.settings import LabelerSettings
from services.labeler.uninitialized_node_monitor import WRITES_PER_PASS
from tests.builders import (
    FAULT,
    NOW,
    STREAM_ID,
    make_facts,
    make_leading,
    make_message,
    make_node,
    make_node_enriched,
    make_node_observed,
    make_snapshot,
    make_unreachable,
)
from tests.clocks import ManualClock
from tests.flow_actors import FlowActor
from tests.labeler_actors import InMemoryNodes
from tests.service_flow import make_dependencies

TIMEOUT = MachineFault(
    kind="timeout", step="PlatformMetadata", endpoint="cp:50000", message="no answer in 5 s"
)


class Stage:
    """One replica: the test publishes events, advances the clock and has the monitor check the Nodes."""

    def __init__(self, flow: FlowActor, kube: InMemoryNodes, *, seed: int = 1, **settings: Any) -> None:
        self.clock = ManualClock()
        self.kube = kube
        parts = make_dependencies(flow.bus, kube=kube, clock=self.clock, seed=seed)
        self.labeler = LabelerService(parts, LabelerSettings(**{"leader_silence_seconds": 3600.0} | settings))
        self.table = self.labeler._stream_cache
        self.watch = self.labeler._uninitialized_node_monitor
        self._sequence = 0
        self.table.start_replay(StreamPosition(stream_id=STREAM_ID, last_sequence=0))
        self.hear(make_snapshot())
        self.table.finish_replay()
        self.hear(make_leading())

    def hear(self, *events: Event) -> None:
        """Publish these events on the flow."""
        for event in events:
            self._sequence += 1
            self.table.apply(make_message(event, sequence=self._sequence))

    def observe_again(self, *names: str) -> None:
        """Publish the API server's current Nodes as the watcher."""
        self.hear(*(make_node_observed(self.kube.node(name)) for name in names))

    async def second(self, times: int = 1) -> None:
        """Advance the clock, with one pass of the monitor in each second."""
        for _ in range(times):
            self.clock.advance(1.0)
            await self.watch.check_nodes()
            await self.labeler._events.flush()

    def blocked(self, name: str = "web-1") -> str:
        """Return the reason in the Node's condition; "" without a condition."""
        condition = self.kube.node(name).find_condition(BLOCKED_CONDITION)
        return condition.reason if condition and condition.status == "True" else ""


def some_nodes(count: int) -> list[Node]:
    return [make_node(f"n{number:03}", uid=f"uid-{number}") for number in range(count)]


async def test_a_node_whose_machine_does_not_answer_says_why_within_seconds(flow: FlowActor):
    stage = Stage(flow, InMemoryNodes(make_node()))
    stage.hear(make_node_observed(make_node()), make_unreachable())
    await stage.second(6)
    assert stage.blocked() == "TalosUnreachable"
    condition = stage.kube.node("web-1").find_condition(BLOCKED_CONDITION)
    assert condition is not None
    assert "connect at 10.0.0.1:50000 for 10.0.0.5: connection refused" in condition.message
    assert condition.last_transition_time is not None
    since = datetime.fromisoformat(condition.last_transition_time)
    assert NOW < since <= NOW + timedelta(seconds=6)
    [event] = stage.kube.events
    assert (event.reason, event.type, event.message) == ("TalosUnreachable", "Warning", condition.message)
    assert metrics.BLOCKED_NODES._value.get() == 1


async def test_a_node_that_nobody_says_anything_of_says_so_after_twenty_seconds(flow: FlowActor):
    stage = Stage(flow, InMemoryNodes(make_node()))
    stage.hear(make_node_observed(make_node()))
    await stage.second(19)
    assert stage.kube.requests == []
    await stage.second(7)
    assert stage.blocked() == "NoFactsYet"
    assert stage.kube.list_event_reasons("web-1") == ["NoFactsYet"]
    decided = await flow.get_decision("web-1")
    assert decided is not None
    assert decided.outcome == "blocked"


async def test_trouble_that_passes_at_once_is_not_written(flow: FlowActor):
    stage = Stage(flow, InMemoryNodes(make_node()), seed=1)
    stage.hear(make_node_observed(make_node()), make_unreachable())
    await stage.watch.check_nodes()
    stage.hear(make_node_enriched(make_node(), make_facts()))
    await stage.second(10)
    assert stage.kube.requests == []


async def test_the_condition_is_written_again_only_when_its_reason_changes(flow: FlowActor):
    stage = Stage(flow, InMemoryNodes(make_node()))
    stage.hear(make_node_observed(make_node()), make_unreachable())
    await stage.second(6)
    stage.observe_again("web-1")
    for attempt in range(2, 30):
        stage.hear(make_unreachable(stage.kube.node("web-1"), attempt=attempt))
        await stage.second()
    assert stage.kube.list_writes() == ["nodes/status", "events"]
    stage.hear(make_unreachable(stage.kube.node("web-1"), fault=TIMEOUT))
    await stage.second(6)
    assert stage.blocked() == "TalosTimeout"
    assert stage.kube.list_event_reasons("web-1") == ["TalosUnreachable", "TalosTimeout"]


async def test_a_condition_is_written_again_only_after_somebody_has_removed_it(flow: FlowActor):
    stage = Stage(flow, InMemoryNodes(make_node()))
    stage.hear(make_node_observed(make_node()), make_unreachable())
    await stage.second(30)
    assert stage.kube.list_writes() == ["nodes/status", "events"], "before the watcher publishes it"
    stage.observe_again("web-1")
    await stage.second()
    stage.kube.put(make_node())
    stage.observe_again("web-1")
    await stage.second(6)
    assert stage.blocked() == "TalosUnreachable"


async def test_a_node_that_kubernetes_has_answered_to_be_initialized_does_not_wait(flow: FlowActor):
    stage = Stage(flow, InMemoryNodes(make_node()))
    stage.hear(make_node_observed(make_node()), make_node_enriched(make_node(), make_facts()))
    await stage.second()
    stage.labeler._own_writes.store(stage.kube.put(make_node(taints=())))
    stage.hear(make_unreachable())  # the watcher has not told of it yet
    await stage.second(6)
    assert stage.kube.requests == []


async def test_what_kubernetes_does_not_let_us_write_at_all_is_told_as_a_decision(flow: FlowActor):
    stage = Stage(flow, InMemoryNodes(make_node()))
    stage.kube.failing = {"nodes/status": Forbidden("no right", status=403)}
    stage.hear(make_node_observed(make_node()), make_node_enriched(make_node(), make_facts()))
    refused = "patch nodes: 403 Forbidden: no right"
    stage.labeler._uninitialized_nodes.record_failed_write("web-1", "uid-1", refused)
    await stage.second(6)
    decided = await flow.get_decision("web-1")
    assert decided is not None
    assert (decided.outcome, decided.reason) == ("blocked", f"writing the Node: {refused}")


async def test_a_node_that_cannot_be_judged_says_so_and_the_others_are_still_told(flow: FlowActor):
    odd, other = make_node("odd", uid="uid-2"), make_node()
    stage = Stage(flow, InMemoryNodes(odd, other))
    facts = make_facts(platform="nocloud", node_name="odd", queried_at=NOW.replace(tzinfo=None))
    stage.hear(
        make_node_observed(odd),
        make_node_observed(other),
        make_node_enriched(odd, facts),
        make_unreachable(other),
    )
    await stage.second(16)
    assert stage.blocked("odd") == "DefectInTalosCCM"
    assert stage.blocked() == "TalosUnreachable"


async def test_a_condition_that_cannot_be_written_is_tried_again(flow: FlowActor):
    stage = Stage(flow, InMemoryNodes(make_node()))
    stage.kube.failing = {"nodes/status": Forbidden("no right", status=403)}
    stage.hear(make_node_observed(make_node()), make_unreachable())
    await stage.second(6)
    tries = len(stage.kube.list_writes())
    assert tries == 1
    stage.kube.failing.clear()
    await stage.second(11)
    assert stage.blocked() == "TalosUnreachable"


@pytest.mark.parametrize(
    ("settings", "disconnects"),
    [({}, True), ({"leader_silence_seconds": 0.5}, False), ({"observe_only": True}, False)],
    ids=["incomplete", "no leader", "observe only"],
)
async def test_no_condition_is_written_while_writes_must_wait(
    flow: FlowActor, settings: dict[str, Any], disconnects: bool
):
    stage = Stage(flow, InMemoryNodes(make_node()), **settings)
    stage.hear(make_node_observed(make_node()), make_unreachable())
    if disconnects:
        stage.table.mark_disconnected("cut off")
    await stage.second(30)
    assert stage.kube.requests == []


async def test_two_replicas_write_a_node_once_and_tell_it_once(flow: FlowActor):
    kube = InMemoryNodes(make_node())
    stages = [Stage(flow, kube, seed=seed) for seed in (1, 2)]
    for stage in stages:
        stage.hear(make_node_observed(make_node()), make_unreachable())
    for _ in range(30):
        for stage in stages:
            await stage.second()
        for stage in stages:
            stage.observe_again("web-1")
    assert kube.list_writes() == ["nodes/status", "events"]


async def test_what_another_replica_has_written_while_we_wrote_is_not_said_again(flow: FlowActor):
    nodes = some_nodes(2)
    kube = InMemoryNodes(*nodes)
    stage = Stage(flow, kube)
    stage.hear(*(make_node_observed(node) for node in nodes), *(make_unreachable(node) for node in nodes))
    await stage.watch.check_nodes()
    stage.clock.advance(10.0)  # both are due

    def another_replica_writes(resource: str) -> None:
        kube.before = lambda resource: None
        for node in nodes:
            kube.put(make_node(node.name, uid=node.uid, conditions=(build_condition(block_on_fault(FAULT)),)))
        stage.observe_again(*(node.name for node in nodes))

    kube.before = another_replica_writes
    await stage.second()
    assert [event.regarding.name for event in kube.events] == [nodes[0].name]
    assert len(kube.list_writes()) == 2


# ---- outages


async def test_an_outage_is_one_event_and_a_problem_and_every_node_still_says_why(flow: FlowActor):
    nodes = some_nodes(400)
    stage = Stage(flow, InMemoryNodes(*nodes))
    stage.hear(
        *(make_node_observed(node) for node in nodes),
        *(make_unreachable(node, fault=TIMEOUT) for node in nodes),
    )
    most = 0
    for _ in range(15):
        before = len(stage.kube.list_writes())
        await stage.second()
        most = max(most, len(stage.kube.list_writes()) - before)
    assert {stage.blocked(node.name) for node in nodes} == {"TalosTimeout"}
    assert most <= WRITES_PER_PASS + 1
    [event] = stage.kube.events
    assert event.regarding.name == "n000"
    assert "400 of 400 uninitialized Nodes" in event.message
    assert "no answer in 5 s" in event.message
    assert stage.watch.problems() == ("outage: TalosTimeout: 400 of 400 uninitialized Nodes",)


async def test_an_outage_that_ends_is_no_problem_any_more(flow: FlowActor):
    nodes = some_nodes(11)
    stage = Stage(flow, InMemoryNodes(*nodes))
    stage.hear(*(make_node_observed(node) for node in nodes), *(make_unreachable(node) for node in nodes))
    await stage.second()
    assert stage.watch.problems()
    stage.hear(*(make_node_enriched(node, make_facts(node_name=node.name)) for node in nodes))
    await stage.second()
    assert stage.watch.problems() == ()


# ---- not ours


async def test_a_node_without_provided_node_ip_is_disowned_in_a_decision_and_told_once_if_it_waits(
    flow: FlowActor,
):
    stage = Stage(flow, InMemoryNodes(make_node(ip="")))
    stage.hear(make_node_observed(make_node(ip="")))
    await stage.second()
    decided = await flow.get_decision("web-1")
    assert decided is not None
    assert decided.outcome == "not-ours"
    assert "--cloud-provider=external" in decided.reason
    assert stage.kube.requests == []
    await stage.second(60)
    assert stage.kube.list_writes() == ["events"]
    assert stage.kube.list_event_reasons("web-1") == ["ProvidedNodeIPMissing"]
    assert stage.blocked() == ""


async def test_an_initialized_node_without_provided_node_ip_gets_no_event(flow: FlowActor):
    node = make_node(ip="", taints=())
    stage = Stage(flow, InMemoryNodes(node))
    stage.hear(make_node_observed(node))
    await stage.second(60)
    assert stage.kube.requests == []
    assert (await flow.get_decision("web-1")) is not None


async def test_the_fleet_of_another_cloud_controller_manager_is_not_told_of_by_events(flow: FlowActor):
    nodes = [make_node(f"n{number}", uid=f"uid-{number}", ip="") for number in range(11)]
    stage = Stage(flow, InMemoryNodes(*nodes))
    stage.hear(*(make_node_observed(node) for node in nodes))
    await stage.second(60)
    assert stage.kube.requests == []


async def test_a_node_that_waits_with_another_controllers_provider_id_is_told_of_once(flow: FlowActor):
    node = make_node(provider_id="proxmox://cluster/101")
    stage = Stage(flow, InMemoryNodes(node))
    stage.hear(make_node_observed(node), make_node_enriched(node, make_facts()))
    await stage.second(15)
    assert stage.kube.requests == []  # the other controller may be at work
    await stage.second(60)
    assert stage.kube.list_writes() == ["events"]
    assert stage.kube.list_event_reasons("web-1") == ["ProviderIDOfAnother"]
    assert "proxmox://cluster/101" in stage.kube.events[0].message
    assert stage.blocked() == ""
