"""Events that report the labeler's own writes: what is planned for them on a real bus, and what is not."""

import msgspec

from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node
from libs.common.observability import metrics
from libs.testbed.nats_server import NatsServer
from tests.builders import make_facts, make_node
from tests.flow_actors import FlowActor
from tests.labeler_actors import InMemoryNodes, run_labeler

FACTS = make_facts(platform="hcloud", provider_id="hcloud://7", region="fsn1", zone="fsn1-dc14")
OWN_LABEL = "topology.kubernetes.io/region"
JOINED = [("patch", "nodes/status"), ("patch", "nodes"), ("create", "events")]


def count_plans() -> float:
    name = "talosccm_transformer_duration_seconds_count"
    return metrics.REGISTRY.get_sample_value(name, {"type": "transformer"}) or 0.0


async def report(flow: FlowActor, node: Node, facts: MachineFacts = FACTS) -> None:
    """The watcher observes the Node, and metadata publishes it again."""
    await flow.enrich(node, facts, observed=await flow.publish_node(node))


async def join(flow: FlowActor) -> None:
    await report(flow, make_node())
    await flow.wait_for_decision("web-1", "initialized")


async def test_a_joining_node_is_planned_before_each_of_its_two_writes_and_not_for_their_echo(
    flow: FlowActor, nats_server: NatsServer
):
    kube, before = InMemoryNodes(make_node()), count_plans()
    async with run_labeler(nats_server.url, kube):
        await join(flow)
        await report(flow, kube.node("web-1"))
        await flow.wait_until_handled()
    assert count_plans() == before + 2
    assert kube.requests == JOINED


async def test_a_label_that_somebody_removes_after_the_write_is_restored(
    flow: FlowActor, nats_server: NatsServer
):
    kube = InMemoryNodes(make_node())
    async with run_labeler(nats_server.url, kube):
        await join(flow)
        labels = dict(kube.node("web-1").labels)
        del labels[OWN_LABEL]
        await report(flow, kube.change("web-1", labels=labels))  # one message for both changes
        await flow.wait_for_decision("web-1", "updated")
    assert kube.node("web-1").labels[OWN_LABEL] == "fsn1"


async def test_a_label_that_somebody_removes_after_the_echo_is_restored(
    flow: FlowActor, nats_server: NatsServer
):
    kube = InMemoryNodes(make_node())
    async with run_labeler(nats_server.url, kube):
        await join(flow)
        await report(flow, kube.node("web-1"))
        await flow.wait_until_handled()
        labels = dict(kube.node("web-1").labels)
        del labels[OWN_LABEL]
        await report(flow, kube.change("web-1", labels=labels))
        await flow.wait_for_decision("web-1", "updated")
    assert kube.node("web-1").labels[OWN_LABEL] == "fsn1"


async def test_facts_that_change_with_the_echo_are_planned(flow: FlowActor, nats_server: NatsServer):
    kube = InMemoryNodes(make_node())
    async with run_labeler(nats_server.url, kube):
        await join(flow)
        platform = msgspec.structs.replace(FACTS.platform, zone="fsn1-dc8")
        await report(flow, kube.node("web-1"), msgspec.structs.replace(FACTS, platform=platform))
        await flow.wait_for_decision("web-1", "updated")
    assert kube.node("web-1").labels["topology.kubernetes.io/zone"] == "fsn1-dc8"


async def test_the_periodic_message_about_a_node_is_planned(flow: FlowActor, nats_server: NatsServer):
    kube, before = InMemoryNodes(make_node()), count_plans()
    async with run_labeler(nats_server.url, kube):
        observed = await flow.publish_node(make_node())
        await flow.enrich(make_node(), FACTS, observed=observed)
        await flow.wait_for_decision("web-1", "initialized")
        await flow.enrich(make_node(), FACTS, observed=observed)
        await flow.wait_until_handled()
    assert count_plans() == before + 3


async def test_a_new_replica_plans_the_echo_of_the_former_one(flow: FlowActor, nats_server: NatsServer):
    kube = InMemoryNodes(make_node())
    async with run_labeler(nats_server.url, kube):
        await join(flow)
    before = count_plans()
    # no rollout: it would plan on the Node that was published before the first replica's writes
    async with run_labeler(nats_server.url, kube, seed=2, rollout_spread_seconds=3600.0):
        await report(flow, kube.node("web-1"))
        await flow.wait_until_handled()
    assert count_plans() > before
    assert kube.requests == JOINED


async def test_two_replicas_restore_what_somebody_removes_whoever_wrote_it(
    flow: FlowActor, nats_server: NatsServer
):
    nodes = [make_node(f"n{number}", uid=f"uid-{number}") for number in range(20)]
    facts_of = {
        node.name: make_facts(
            platform="hcloud", provider_id=f"hcloud://{node.uid}", region="fsn1", node_name=node.name
        )
        for node in nodes
    }
    kube = InMemoryNodes(*nodes)
    async with run_labeler(nats_server.url, kube, seed=1), run_labeler(nats_server.url, kube, seed=2):
        for node in nodes:
            await report(flow, node, facts_of[node.name])
        for node in nodes:
            await flow.wait_for_decision(node.name, "initialized")
        for node in nodes:
            await report(flow, kube.node(node.name), facts_of[node.name])
        await flow.wait_until_handled()
        assert len(kube.list_patches()) == 2 * len(nodes)
        for node in nodes:
            labels = dict(kube.node(node.name).labels)
            del labels[OWN_LABEL]
            await report(flow, kube.change(node.name, labels=labels), facts_of[node.name])
        for node in nodes:
            await flow.wait_for_decision(node.name, "updated")
    assert {kube.node(node.name).labels[OWN_LABEL] for node in nodes} == {"fsn1"}
