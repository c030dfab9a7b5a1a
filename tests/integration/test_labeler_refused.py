"""What the real API server refuses of rules keeps no Node from being initialised, and is told on it."""

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from libs.common.kube_api.api import KubeApi
from libs.common.kube_api.config import load_kube_config
from libs.common.node import PROVIDED_NODE_IP, Node
from libs.common.wiring import LABELER
from libs.testbed.control_plane.cluster import ControlPlane
from libs.testbed.kubelets import Kubelet, Kubelets
from libs.testbed.running_services import grant_rights
from libs.testbed.service_rights import user_of
from services.labeler.already_said import AlreadySaid
from services.labeler.answers import Answers
from services.labeler.node_api import NodeApi
from services.labeler.plan import Plan, plan_node
from services.labeler.refused import Refused
from tests.builders import some_facts
from tests.planned import one_rule, record_in

LONG = "y" * 1000
CASES = {
    "refused-format": ({}, "{scheduler.alpha.kubernetes.io/preferAvoidPods: 'no JSON'}"),
    "refused-size": (
        {"example.com/state": "x" * 260_500},
        f"{{example.com/a: {LONG}, example.com/b: {LONG}}}",
    ),
}


@pytest.fixture
async def kube(control_plane: ControlPlane, kubelets: Kubelets) -> AsyncIterator[KubeApi]:
    await grant_rights(kubelets)
    config = load_kube_config(control_plane.kubeconfig(user_of(LABELER)), {})
    api = KubeApi(config, user_agent="talos-ccm/test", instance="test")
    yield api
    await api.close()


@pytest.mark.parametrize("name", CASES)
async def test_a_node_whose_rules_are_refused_is_initialised_with_all_the_rest(
    kube: KubeApi, kubelets: Kubelets, name: str
):
    theirs, annotations = CASES[name]
    await kubelets.join(Kubelet(name=name, annotations={PROVIDED_NODE_IP: "10.0.0.5"} | theirs))
    config = one_rule(
        annotations=annotations,
        labels="{node-role.kubernetes.io/web: ''}",
        taints="{example.com/agent: 'waiting:NoSchedule'}",
    )

    def plan(node: Node, refused: Refused) -> Plan:
        return plan_node(node, some_facts(node_name=name), "nodename", config, refused)

    nodes = NodeApi(
        kube, AlreadySaid(), Answers(time.monotonic), now=lambda: datetime.now(UTC), observe_only=False
    )
    done = await nodes.apply(await kube.get_node(name), plan)
    node = await kube.get_node(name)
    assert (done.outcome, node.initialized) == ("initialized", True)
    assert node.labels["node-role.kubernetes.io/web"] == ""
    assert "example.com/agent" in {taint.key for taint in node.spec.taints}
    assert "annotations" not in record_in(node)
    [told] = [each for each in done.notices if each.reason == "RulesRefused"]
    assert told.message.startswith("Kubernetes refuses annotations that rules set: ")
    assert "metadata.annotations" in told.message
    again = await nodes.apply(node, plan)
    assert (again.outcome, again.writes) == ("unchanged", ())
    after = await kube.get_node(name)  # others, such as the controller-manager, may write it meanwhile
    assert (after.labels, record_in(after)) == (node.labels, record_in(node))
    await kubelets.delete(name)
