"""A providerID that another Node has or will get: what the labeler writes, with one replica and with two."""

from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.machine import AddressStatus, MachineFacts
from libs.common.contract.node import BLOCKED_CONDITION, Node, NodeCondition
from libs.testbed.nats_server import NatsServer
from services.labeler.core.rules.machine_data import MachineData
from tests.builders import FAULT, make_facts, make_node
from tests.bus_actors import wait_until
from tests.flow_actors import FlowActor
from tests.labeler_actors import InMemoryNodes, run_labeler

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


async def enrich(flow: FlowActor, node: Node, facts: MachineFacts) -> None:
    await flow.enrich(node, facts, observed=await flow.publish_node(node))


async def test_two_replicas_give_a_provider_id_to_one_of_the_nodes_that_join_at_once(
    flow: FlowActor, nats_server: NatsServer
):
    numbers = range(1, 9)
    kube = InMemoryNodes(*map(numbered, numbers))
    async with AsyncExitStack() as replicas:
        for seed in (1, 2):
            await replicas.enter_async_context(run_labeler(nats_server.url, kube, seed=seed, **rules()))
        for number in numbers:
            await enrich(flow, numbered(number), facts_of(number))
        await flow.wait_for_decision("web-1", "initialized")
        decided = [await flow.wait_for_decision(f"web-{number}", "blocked") for number in numbers[1:]]
    ids = [kube.node(f"web-{number}").spec.provider_id for number in numbers]
    assert ids == [ID, *[""] * 7]
    assert all("belongs to Node web-1" in each.reason for each in decided)
    assert not any(kube.node(f"web-{number}").is_initialized for number in numbers[1:])


async def test_a_restarted_labeler_withholds_the_id_of_a_node_whose_machine_answers(
    flow: FlowActor, nats_server: NatsServer
):
    old = numbered(1, provider_id=ID, taints=())
    kube = InMemoryNodes(old, numbered(2))
    await enrich(flow, old, facts_of(1))
    await enrich(flow, numbered(2), facts_of(2))
    async with run_labeler(nats_server.url, kube, **rules()):
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
            await enrich(flow, numbered(2), facts_of(2))
            await enrich(flow, old, facts_of(1))
            await flow.publish_snapshot(2)
            await flow.publish_leading()
            await flow.wait_for_decision("web-2", "blocked")
    assert kube.node("web-2").spec.provider_id == ""


async def test_a_machine_that_was_reinstalled_under_a_new_name_gets_its_own_id(
    flow: FlowActor, nats_server: NatsServer
):
    old = numbered(1, provider_id=ID, taints=())
    kube = InMemoryNodes(old, numbered(2))
    async with run_labeler(nats_server.url, kube, **rules()):
        await flow.publish_node(old)
        await flow.publish_unreachable(old, FAULT)
        await enrich(flow, numbered(2), facts_of(2))
        await flow.wait_for_decision("web-2", "initialized")
    assert kube.node("web-2").spec.provider_id == ID
    [event] = [each for each in kube.events if each.reason == "ProviderIDOfStaleNode"]
    assert "Node web-1 has the same providerID" in event.message


async def test_the_condition_names_the_node_that_has_the_id_now(flow: FlowActor, nats_server: NatsServer):
    old = numbered(1, provider_id=ID, taints=())
    former = NodeCondition(
        type=BLOCKED_CONDITION, status="True", reason="ProviderIDOfAnotherNode", message="Node web-9 has it"
    )
    waiting = numbered(2, conditions=(former,))
    kube = InMemoryNodes(old, waiting)
    async with run_labeler(nats_server.url, kube, **rules()):
        await enrich(flow, old, facts_of(1))
        await enrich(flow, waiting, facts_of(2))

        def names_web_1() -> bool:
            condition = kube.node("web-2").find_condition(BLOCKED_CONDITION)
            return condition is not None and "belongs to Node web-1" in (condition.message or "")

        await wait_until(names_web_1, "the condition names web-1")


async def test_the_rules_are_evaluated_once_for_a_node_that_joins(
    flow: FlowActor, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
):
    evaluated: Counter[str] = Counter()

    class CountedMachineData(MachineData):
        def __init__(self, facts: MachineFacts) -> None:
            evaluated[facts.node_name] += 1
            super().__init__(facts)

    monkeypatch.setattr("services.labeler.core.rules.application.MachineData", CountedMachineData)
    kube = InMemoryNodes(numbered(1))
    async with run_labeler(nats_server.url, kube, **rules()):
        await enrich(flow, numbered(1), facts_of(1))
        await flow.wait_for_decision("web-1", "initialized")
    assert kube.list_patches() == ["nodes/status", "nodes"]  # two plans
    assert evaluated == {"web-1": 1}
