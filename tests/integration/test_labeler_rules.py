"""Rules on the real API server: what a kubelet writes to its own Node protects no key from them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.node import FIELD_OWNERSHIP_DIGEST_LABEL, PROVIDED_NODE_IP_ANNOTATION, Node
from libs.common.contract.services import LABELER
from libs.common.kube.api import KubeApi
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import MERGE, KubeletFleet, RequestRejected, SimKubelet
from libs.testbed.nats_server import NatsServer
from tests.builders import make_facts
from tests.clocks import ManualClock
from tests.flow_actors import FlowActor
from tests.integration.service_api import open_api_of
from tests.labeler_actors import run_labeler

RESTRICTED = "tier.node-restriction.kubernetes.io/level"
QUARANTINED = f"""
transformations:
- name: quarantine
  labels: {{{RESTRICTED}: quarantine}}
  taints: {{example.com/apart: "yes:NoExecute"}}
"""
NONE = ""


@dataclass
class Site:
    """A real API server, and labelers that run one after the other, each with its own rules."""

    kubelets: KubeletFleet
    kube: KubeApi
    flow: FlowActor
    url: str

    async def obey(self, name: str, rules: str) -> Node:
        """Run a labeler with these rules, publish the machine's facts, and return the reconciled Node.

        The restarted labeler knows only the Nodes.
        """
        file = parse_cloud_config(rules, "ccm-config.yaml")
        clock = ManualClock(datetime.now(UTC))
        await self.flow.publish_leading()  # it is forgotten after 10 s
        async with run_labeler(self.url, self.kube, clock=clock, file=file):
            before = await self.kube.get_node(name)
            await self.flow.enrich(before, make_facts(node_name=name))
            await self.flow.wait_until_handled()
            return await self.kube.get_node(name)


@pytest.fixture(scope="module")
async def site(
    control_plane: ControlPlane, kubelets: KubeletFleet, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(NatsServer.start(tmp_path_factory.mktemp("rules-nats")))
        flow = await stack.enter_async_context(FlowActor.open_led(server.url))
        kube = await stack.enter_async_context(open_api_of(LABELER, control_plane, kubelets))
        yield Site(kubelets, kube, flow, server.url)


async def test_a_kubelet_cannot_keep_what_no_kubelet_may_write_by_an_annotation_of_its_own_node(site: Site):
    name, path = "rules-veto", "/api/v1/nodes/rules-veto"
    annotations = {
        PROVIDED_NODE_IP_ANNOTATION: "10.0.0.5",
        "talos.dev/owned-labels": f'["{RESTRICTED}"]',
        "talos.dev/owned-taints": '["example.com/apart"]',
    }
    await site.kubelets.join(SimKubelet(name=name))
    body = {"metadata": {"annotations": annotations}}
    answer = await site.kubelets.request("PATCH", path, as_node=name, body=body, content_type=MERGE)
    assert answer.status == 200
    node = await site.obey(name, QUARANTINED)
    assert (node.is_initialized, node.labels.get(RESTRICTED)) == (True, "quarantine")
    assert "example.com/apart" in {taint.key for taint in node.spec.taints}
    node = await site.obey(name, QUARANTINED.replace("quarantine", "gold"))
    assert node.labels.get(RESTRICTED) == "gold"
    node = await site.obey(name, NONE)
    assert RESTRICTED not in node.labels
    await site.kubelets.delete_node(name)


async def test_a_kubelet_cannot_register_with_a_digest_for_a_forged_record(site: Site):
    kubelet = SimKubelet(name="rules-forged", labels={FIELD_OWNERSHIP_DIGEST_LABEL: "x"})
    with pytest.raises(RequestRejected, match="not allowed to set the following labels"):
        await site.kubelets.join(kubelet)
