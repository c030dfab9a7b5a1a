"""Nodes of others, and providerIDs that two Nodes would get."""

from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.cloud_config.model import CloudConfig
from libs.common.contract.controllers import CLOUD_NODE
from libs.common.contract.machine import AddressStatus, MachineFacts
from libs.common.contract.node import BLOCKED_CONDITION, Node, NodeAddress, NodeCondition
from libs.testbed.nats_server import NatsServer
from services.labeler.core.rules.machine_data import MachineData
from tests.builders import FAULT, make_facts, make_node
from tests.bus_actors import wait_until
from tests.clocks import ManualClock
from tests.flow_actors import FlowActor
from tests.labeler_actors import InMemoryNodes, run_labeler

TEAM_A: Final = "ownership: {nodeSelector: [{matchExpressions: [{key: team, operator: In, values: [a]}]}]}"
TALOS_ONLY: Final = "ownership: {providerIDSchemes: [talos]}"
STALE = NodeCondition(type=BLOCKED_CONDITION, status="True", reason="TalosUnreachable", message="x")
THEIRS: Final = {"team": "b"}
ADDRESSES: Final = (
    NodeAddress(type="InternalIP", address="10.0.0.5"),
    NodeAddress(type="Hostname", address="web-1"),
)


def file(text: str) -> CloudConfig:
    return parse_cloud_config(text, "f")


async def test_a_foreign_node_costs_no_request(flow: FlowActor):
    """Not even one that this controller has initialized, and whose condition is old."""
    node = make_node(labels=THEIRS, taints=(), conditions=(STALE,))
    kube = InMemoryNodes(node)
    async with run_labeler(flow.url, kube, file=file(TEAM_A)):
        await flow.publish_unreachable(node, FAULT)
        decided = await flow.wait_for_decision("web-1", "not-ours")
        await flow.wait_until_handled()
    assert kube.requests == []
    assert 'ownership.nodeSelector does not select it: team is "b", not "a"' in decided.reason


async def test_when_the_file_gives_us_a_node_it_is_served_and_when_it_takes_it_back_left_as_it_is(
    flow: FlowActor, tmp_path: Path
):
    path = tmp_path / "config.yaml"
    path.write_text(TEAM_A)
    node = make_node(labels=THEIRS)
    kube = InMemoryNodes(node)
    given: dict[str, Any] = {
        "cloud_config": path,
        "cloud_config_poll_seconds": 0.05,
        "rollout_spread_seconds": 0.0,
    }
    async with run_labeler(flow.url, kube, file=file(TEAM_A), **given):
        await flow.enrich(node, make_facts())
        await flow.wait_for_decision("web-1", "not-ours")
        path.write_text(TEAM_A.replace("[a]", "[b]"))
        await flow.wait_for_decision("web-1", "initialized")
        path.write_text(TEAM_A)
        await flow.wait_for_decision("web-1", "not-ours")
        asked = len(kube.list_writes())
        await flow.enrich(kube.node("web-1"), make_facts(platform="metal", zone="moved"))
        await flow.wait_until_handled()
    assert kube.node("web-1").is_initialized
    assert len(kube.list_writes()) - asked <= 1  # at most the Event of its initialisation
    assert "topology.kubernetes.io/zone" not in kube.node("web-1").labels


async def test_a_file_that_gives_a_node_away_between_two_writes_has_the_second_left_out(
    flow: FlowActor, tmp_path: Path
):
    """Excluded between two writes: the addresses are written, but no label, providerID, taint or Event."""
    path = tmp_path / "config.yaml"
    path.write_text(TEAM_A)
    kube = InMemoryNodes(make_node(labels={"team": "a"}))
    given: dict[str, Any] = {
        "cloud_config": path,
        "cloud_config_poll_seconds": 3600.0,
        "rollout_spread_seconds": 0.0,
    }
    async with run_labeler(flow.url, kube, file=file(TEAM_A), **given) as labeler:
        theirs = msgspec.structs.replace(
            labeler._config_reloader.current(),
            ownership=file(TEAM_A.replace("[a]", "[b]")).ownership.for_controller(CLOUD_NODE),
        )
        kube.before = lambda resource: labeler._config_reloader._accept(theirs, warnings=())
        await flow.enrich(kube.node("web-1"), make_facts())
        await flow.wait_for_decision("web-1", "not-ours")
        await flow.wait_until_handled()
    assert kube.list_writes() == ["nodes/status"]
    assert not kube.node("web-1").is_initialized


async def test_a_node_that_is_relabelled_between_plan_and_write_is_not_written(flow: FlowActor):
    """The new label is not published yet: the patch tests the label by which the Node was selected."""
    node = make_node(labels={"team": "a"}, addresses=ADDRESSES)
    kube = InMemoryNodes(node)
    kube.change("web-1", labels=THEIRS)
    async with run_labeler(flow.url, kube, file=file(TEAM_A)):
        await flow.enrich(node, make_facts())
        await flow.wait_for_decision("web-1", "not-ours")
    assert kube.node("web-1").labels == THEIRS
    assert not kube.node("web-1").is_initialized
    assert kube.node("web-1").spec.provider_id == ""
    assert kube.events == []


# The arguments of regexReplaceAll are swapped, so the result is the same for every machine.
RULE = 'vm://c/{{ regexReplaceAll .Hostname "vm" "$1" }}'
ID = "vm://c/vm"


def rules() -> dict[str, Any]:
    text = f"transformations: [{{name: ids, platformMetadata: {{ProviderID: '{RULE}'}}}}]"
    return {"file": parse_cloud_config(text, "ccm-config.yaml")}


def numbered(number: int, **fields: Any) -> Node:
    return make_node(f"web-{number}", uid=f"uid-{number}", ip=f"10.0.0.{number}", **fields)


def facts_of(number: int) -> MachineFacts:
    ip = f"10.0.0.{number}"
    links = (AddressStatus(address=f"{ip}/24", link="eth0", flags=128),)
    return make_facts(node_name=f"web-{number}", hostname=f"web-{number}", node_ip=ip, addresses=links)


async def test_two_replicas_give_a_provider_id_to_one_of_the_nodes_that_join_at_once(flow: FlowActor):
    numbers = range(1, 9)
    kube, clock = InMemoryNodes(*map(numbered, numbers)), ManualClock()

    async def is_initialized() -> bool:
        clock.advance(2.0)  # the first one waits for writes that were planned before its message
        await flow.publish_leading()
        return kube.node("web-1").is_initialized

    async with AsyncExitStack() as replicas:
        for seed in (1, 2):
            running = run_labeler(flow.url, kube, seed=seed, clock=clock, **rules())
            await replicas.enter_async_context(running)
        for number in numbers:
            await flow.enrich(numbered(number), facts_of(number))
        await wait_until(is_initialized, "the first one is initialized")
        decided = [await flow.wait_for_decision(f"web-{number}", "blocked") for number in numbers[1:]]
    ids = [kube.node(f"web-{number}").spec.provider_id for number in numbers]
    assert ids == [ID, *[""] * 7]
    assert all("belongs to Node web-1" in each.reason for each in decided)
    assert not any(kube.node(f"web-{number}").is_initialized for number in numbers[1:])


async def test_a_restarted_labeler_withholds_the_id_of_a_node_whose_machine_answers(flow: FlowActor):
    old = numbered(1, provider_id=ID, taints=())
    kube = InMemoryNodes(old, numbered(2))
    await flow.enrich(old, facts_of(1))
    await flow.enrich(numbered(2), facts_of(2))
    async with run_labeler(flow.url, kube, **rules()):
        decided = await flow.wait_for_decision("web-2", "blocked")
        assert "belongs to Node web-1: machine web-1 answers as that Node" in decided.reason
        kube.delete("web-1")
        await flow.publish_node_gone(old)
        await flow.wait_for_decision("web-2", "initialized")  # without another message about it
    assert kube.node("web-2").spec.provider_id == ID


async def test_no_provider_id_is_written_before_all_nodes_are_known(nats_server: NatsServer):
    old = numbered(1, provider_id=ID, taints=())
    kube = InMemoryNodes(old, numbered(2))
    async with FlowActor.open(nats_server.url) as flow:
        await flow.publish_leading()
        async with run_labeler(nats_server.url, kube, ready=False, **rules()):
            await flow.publish_leading()
            await flow.enrich(numbered(2), facts_of(2))
            await flow.enrich(old, facts_of(1))
            await flow.publish_snapshot(2)
            await flow.publish_leading()
            await flow.wait_for_decision("web-2", "blocked")
    assert kube.node("web-2").spec.provider_id == ""


async def test_a_machine_that_was_reinstalled_under_a_new_name_gets_its_own_id(flow: FlowActor):
    old = numbered(1, provider_id=ID, taints=())
    kube = InMemoryNodes(old, numbered(2))
    async with run_labeler(flow.url, kube, **rules()):
        await flow.publish_node(old)
        await flow.publish_unreachable(old, FAULT)
        await flow.enrich(numbered(2), facts_of(2))
        await flow.wait_for_decision("web-2", "initialized")
    assert kube.node("web-2").spec.provider_id == ID
    [event] = [each for each in kube.events if each.reason == "ProviderIDOfStaleNode"]
    assert "Node web-1 has the same providerID" in event.message


async def test_the_condition_names_the_node_that_has_the_id_now(flow: FlowActor):
    old = numbered(1, provider_id=ID, taints=())
    former = NodeCondition(
        type=BLOCKED_CONDITION, status="True", reason="ProviderIDOfAnotherNode", message="Node web-9 has it"
    )
    waiting = numbered(2, conditions=(former,))
    kube = InMemoryNodes(old, waiting)
    async with run_labeler(flow.url, kube, **rules()):
        await flow.enrich(old, facts_of(1))
        await flow.enrich(waiting, facts_of(2))

        def names_web_1() -> bool:
            condition = kube.node("web-2").find_condition(BLOCKED_CONDITION)
            return condition is not None and "belongs to Node web-1" in (condition.message or "")

        await wait_until(names_web_1, "the condition names web-1")


async def test_the_rules_are_evaluated_once_for_a_node_that_joins(
    flow: FlowActor, monkeypatch: pytest.MonkeyPatch
):
    evaluated: Counter[str] = Counter()

    class CountedMachineData(MachineData):
        def __init__(self, facts: MachineFacts) -> None:
            evaluated[facts.node_name] += 1
            super().__init__(facts)

    monkeypatch.setattr("services.labeler.core.rules.application.MachineData", CountedMachineData)
    kube = InMemoryNodes(numbered(1))
    async with run_labeler(flow.url, kube, **rules()):
        await flow.enrich(numbered(1), facts_of(1))
        await flow.wait_for_decision("web-1", "initialized")
    assert kube.list_patches() == ["nodes/status", "nodes"]  # two plans
    assert evaluated == {"web-1": 1}
