"""Rules on the real API server: what a kubelet writes to its own Node keeps and removes no key of others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.node import (
    FIELD_OWNERSHIP_ANNOTATION,
    FIELD_OWNERSHIP_DIGEST_LABEL,
    PROVIDED_NODE_IP_ANNOTATION,
    Node,
)
from libs.common.contract.protected_annotation import compute_digest
from libs.common.contract.services import LABELER
from libs.common.kube.api import KubeApi
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import MERGE, KubeletFleet, RequestRejected, SimKubelet
from libs.testbed.nats_server import NatsServer
from services.labeler.core.plan.ownership_record import ManagedFields, encode_managed_fields
from tests.builders import make_facts
from tests.bus_actors import wait_for_value
from tests.clocks import ManualClock
from tests.flow_actors import FlowActor
from tests.integration.service_api import open_api_of
from tests.labeler_actors import run_labeler
from tests.node_plans import decode_record_annotation

ROLE = "node-role.kubernetes.io/web"
RULES = f"transformations: [{{name: web, labels: {{{ROLE}: ''}}}}]"
RESTRICTED = "tier.node-restriction.kubernetes.io/level"
QUARANTINED = f"""
transformations:
- name: quarantine
  labels: {{{RESTRICTED}: quarantine}}
  taints: {{example.com/apart: "yes:NoExecute"}}
"""
NONE = ""
FORGED = encode_managed_fields(
    ManagedFields(labels={"example.com/guard": "on"}, taints={"example.com/apart:NoSchedule": "yes"})
)


@dataclass
class Site:
    """A real API server, and labelers that run one after the other, each with its own rules."""

    kubelets: KubeletFleet
    kube: KubeApi
    flow: FlowActor
    url: str
    names: list[str] = field(default_factory=list)

    async def join(self, name: str, **kubelet: Any) -> Node:
        self.names.append(name)
        await self.kubelets.join(SimKubelet(name=name, **kubelet))
        return await self.kube.get_node(name)

    @asynccontextmanager
    async def ruled(self, rules: str) -> AsyncIterator[None]:
        """A labeler with these rules; a restarted labeler knows only the Nodes."""
        file = parse_cloud_config(rules, "ccm-config.yaml")
        clock = ManualClock(datetime.now(UTC))
        await self.flow.publish_leading()  # it is forgotten after 10 s
        # no rollout: it would plan the Nodes of the other tests by these rules
        async with run_labeler(self.url, self.kube, clock=clock, file=file, rollout_spread_seconds=3600.0):
            yield

    async def obey(self, name: str, rules: str) -> Node:
        """Run a labeler with these rules, publish the machine's facts, and return the reconciled Node."""
        async with self.ruled(rules):
            before = await self.kube.get_node(name)
            await self.flow.enrich(before, make_facts(node_name=name))
            await self.flow.wait_until_handled()
            return await self.kube.get_node(name)

    async def change(self, name: str, body: dict[str, Any]) -> None:
        """Change the Node as a person does with kubectl."""
        await self.kubelets.request("PATCH", f"/api/v1/nodes/{name}", body=body, content_type=MERGE)

    async def events(self, name: str, reason: str) -> list[str]:
        """Wait for Events with that reason and return their messages."""
        selector = f"involvedObject.name={name},reason={reason}"
        path = f"/api/v1/namespaces/default/events?fieldSelector={selector}"

        async def get_messages() -> list[str] | None:
            return [
                item["message"] for item in (await self.kubelets.request("GET", path)).body["items"]
            ] or None

        return await wait_for_value(get_messages, what=f"{reason} of {name}")


@pytest.fixture(scope="module")
async def site(
    control_plane: ControlPlane, kubelets: KubeletFleet, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(NatsServer.start(tmp_path_factory.mktemp("rules-nats")))
        flow = await stack.enter_async_context(FlowActor.open_led(server.url))
        kube = await stack.enter_async_context(open_api_of(LABELER, control_plane, kubelets))
        site = Site(kubelets, kube, flow, server.url)
        yield site
        await asyncio.gather(*(kubelets.delete_node(name) for name in site.names))


async def test_a_kubelet_cannot_keep_what_no_kubelet_may_write_by_an_annotation_of_its_own_node(site: Site):
    name, path = "rules-veto", "/api/v1/nodes/rules-veto"
    annotations = {
        PROVIDED_NODE_IP_ANNOTATION: "10.0.0.5",
        "talos.dev/owned-labels": f'["{RESTRICTED}"]',
        "talos.dev/owned-taints": '["example.com/apart"]',
    }
    await site.join(name)
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


async def test_a_kubelet_can_forge_the_record_of_its_node_but_not_what_vouches_for_it(site: Site):
    name = "rules-forged"
    path = f"/api/v1/nodes/{name}"
    kubelet = SimKubelet(name=name, labels={FIELD_OWNERSHIP_DIGEST_LABEL: compute_digest(FORGED)})
    # not when it registers
    with pytest.raises(RequestRejected, match="not allowed to set the following labels"):
        await site.kubelets.join(kubelet)
    await site.join(
        name, annotations={PROVIDED_NODE_IP_ANNOTATION: "10.0.0.5", FIELD_OWNERSHIP_ANNOTATION: FORGED}
    )
    joined = await site.obey(name, RULES)
    assert decode_record_annotation(joined)["labels"][ROLE] == ""
    apart = {"key": "example.com/apart", "value": "yes", "effect": "NoSchedule"}
    taints = [msgspec.to_builtins(each) for each in joined.spec.taints]
    given = {"metadata": {"labels": {"example.com/guard": "on"}}, "spec": {"taints": [*taints, apart]}}
    await site.change(name, given)

    async def by_kubelet(metadata: dict[str, Any]) -> int:
        changes = {"metadata": metadata}
        answer = await site.kubelets.request("PATCH", path, as_node=name, body=changes, content_type=MERGE)
        return answer.status

    for value in (compute_digest(FORGED), None, "x"):  # nor later
        assert await by_kubelet({"labels": {FIELD_OWNERSHIP_DIGEST_LABEL: value}}) == 403
    assert await by_kubelet({"annotations": {FIELD_OWNERSHIP_ANNOTATION: FORGED}}) == 200
    node = await site.obey(name, RULES)
    assert node.annotations[FIELD_OWNERSHIP_ANNOTATION] == joined.annotations[FIELD_OWNERSHIP_ANNOTATION]
    assert await by_kubelet({"annotations": {FIELD_OWNERSHIP_ANNOTATION: FORGED}}) == 200
    node = await site.obey(name, NONE)
    assert node.labels["example.com/guard"] == "on"
    assert "example.com/apart" in {taint.key for taint in node.spec.taints}
    told = await site.events(name, "OwnedRecordUnreadable")
    assert len([each for each in told if "no label" in each]) == 1  # as it joined
    assert len([each for each in told if "another writer has changed it" in each]) == len(told) - 1
