"""Rules on the real API server: their keys are set, changed and removed with them, and no other key."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.machine import MachineFacts, SystemInformation
from libs.common.contract.node import (
    FIELD_OWNERSHIP_ANNOTATION,
    FIELD_OWNERSHIP_DIGEST_LABEL,
    PROVIDED_NODE_IP_ANNOTATION,
    UNINITIALIZED_TAINT,
    Node,
)
from libs.common.contract.protected_annotation import compute_digest
from libs.common.contract.services import LABELER
from libs.common.kube.api import KubeApi
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import MERGE, KubeletFleet, RequestRejected, SimKubelet
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_permissions import get_user_name
from services.labeler.core.plan.ownership_record import ManagedFields, encode_managed_fields
from tests.builders import make_facts
from tests.bus_actors import wait_until
from tests.clocks import ManualClock
from tests.flow_actors import FlowActor
from tests.integration.service_api import open_api_of
from tests.labeler_actors import run_labeler
from tests.node_plans import decode_record_annotation

USER = get_user_name(LABELER)
QEMU = "Standard PC (i440FX + PIIX, 1996)"
ROLE = "node-role.kubernetes.io/web"
EVERYTHING = f"""
transformations:
- name: product
  labels: {{example.com/product: "{{{{ .ProductName }}}}"}}
- name: web
  labels: {{{ROLE}: "", example.com/team: web}}
  annotations: {{example.com/note: "made by <{{{{ .Platform }}}}> & co"}}
  taints: {{example.com/agent: "waiting:NoSchedule"}}
"""
OTHER_TEAM = """
transformations:
- name: web
  labels: {example.com/team: db}
"""
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
# The node lifecycle controller may rewrite taints in the same instant: then the fence fails once.
ONE_WRITE = ({"nodes": 1}, {"nodes": 2})


@dataclass
class Site:
    """A real API server, and labelers that run one after the other, each with its own rules."""

    control_plane: ControlPlane
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

    async def look(self, name: str, facts: MachineFacts | None = None) -> Node:
        """Publish the machine's facts and return the Node after the labeler has reconciled it."""
        before = await self.kube.get_node(name)
        await self.flow.enrich(before, facts or make_facts(node_name=name))
        await self.flow.wait_until_handled()
        return await self.kube.get_node(name)

    async def obey(self, name: str, rules: str, facts: MachineFacts | None = None) -> Node:
        async with self.ruled(rules):
            return await self.look(name, facts)

    async def change(self, name: str, body: dict[str, Any]) -> None:
        """Change the Node as a person does with kubectl."""
        await self.kubelets.request("PATCH", f"/api/v1/nodes/{name}", body=body, content_type=MERGE)

    async def events(self, name: str, *reasons: str) -> list[str]:
        """Wait for Events with all these reasons and return their messages."""
        path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}"
        found: list[dict[str, Any]] = []

        async def there() -> bool:
            items = (await self.kubelets.request("GET", path)).body["items"]
            found[:] = [item for item in items if item["reason"] in reasons]
            return {item["reason"] for item in found} == set(reasons)

        await wait_until(there, f"events of {name}: {reasons}")
        return [item["message"] for item in found]

    def writes(self, since: int) -> dict[str, int]:
        """Return the number of the labeler's writes by resource, without Events."""
        counts: dict[str, int] = {}
        for request, count in self.control_plane.audit_counts(since).items():
            if request.user == USER and request.verb == "patch":
                counts[request.resource] = counts.get(request.resource, 0) + count
        return counts


@pytest.fixture(scope="module")
async def site(
    control_plane: ControlPlane, kubelets: KubeletFleet, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(NatsServer.start(tmp_path_factory.mktemp("rules-nats")))
        flow = await stack.enter_async_context(FlowActor.open_led(server.url))
        kube = await stack.enter_async_context(open_api_of(LABELER, control_plane, kubelets))
        site = Site(control_plane, kubelets, kube, flow, server.url)
        yield site
        await asyncio.gather(*(kubelets.delete_node(name) for name in site.names))


def keys_of_rules(node: Node) -> set[str]:
    found = {*node.labels, *node.annotations, *(taint.key for taint in node.spec.taints)}
    return {key for key in found if key.startswith("example.com/") or key == ROLE}


async def test_a_node_lives_through_rules_that_come_change_and_go(site: Site):
    name = "rules-life"
    before = await site.join(name, labels={"mine": "kept"})
    qemu = msgspec.structs.replace(make_facts(node_name=name), system=SystemInformation(product_name=QEMU))
    async with site.ruled(EVERYTHING):
        node = await site.look(name, qemu)
        [skipped] = await site.events(name, "LabelSkipped")
        assert "rule 'product'" in skipped
        assert "example.com/product" in skipped
        assert QEMU in skipped
    assert UNINITIALIZED_TAINT not in {taint.key for taint in node.spec.taints}
    assert (node.labels[ROLE], node.labels["example.com/team"]) == ("", "web")
    assert node.annotations["example.com/note"] == "made by <metal> & co"
    assert ("example.com/agent", "waiting", "NoSchedule") in {
        (taint.key, taint.value, taint.effect) for taint in node.spec.taints
    }
    node = await site.obey(name, OTHER_TEAM, qemu)
    assert keys_of_rules(node) == {"example.com/team"}
    assert node.labels["example.com/team"] == "db"
    since = site.control_plane.audit_mark()
    node = await site.obey(name, NONE, qemu)
    assert site.writes(since) in ONE_WRITE
    assert keys_of_rules(node) == set()
    assert node.labels.items() >= before.labels.items()
    assert node.annotations.items() >= before.annotations.items()


async def test_rules_cost_a_joining_node_no_request_more(site: Site):
    name = "rules-cost"
    await site.join(name)
    async with site.ruled(EVERYTHING):
        since = site.control_plane.audit_mark()
        await site.look(name)
        await site.events(name, "Synced")
        assert site.writes(since) in ONE_WRITE  # its addresses are right already
        since = site.control_plane.audit_mark()
        await site.look(name)
        assert site.writes(since) == {}


async def test_a_taint_that_its_agent_took_off_stays_off(site: Site):
    name = "rules-agent"
    await site.join(name)
    async with site.ruled(EVERYTHING):
        node = await site.look(name)
        others = [msgspec.to_builtins(each) for each in node.spec.taints if each.key != "example.com/agent"]
        assert len(others) < len(node.spec.taints)
        await site.change(name, {"spec": {"taints": others}})
        node = await site.look(name)
    assert "example.com/agent" not in {taint.key for taint in node.spec.taints}
    assert decode_record_annotation(node)["taints"] == {"example.com/agent:NoSchedule": None}


async def test_what_the_reference_left_is_adopted_and_goes_with_its_rule(site: Site):
    name = "rules-migrated"
    provided = {PROVIDED_NODE_IP_ANNOTATION: "10.0.0.5"}
    await site.join(name, labels={"example.com/other": "web"}, annotations=provided, is_uninitialized=False)
    left = {"example.com/team": "web", "node.cloudprovider.kubernetes.io/platform": "metal"}
    given = {"metadata": {"labels": left}, "spec": {"providerID": "talos://metal/10.0.0.5"}}
    await site.change(name, given)
    since = site.control_plane.audit_mark()
    node = await site.obey(name, NONE)
    assert FIELD_OWNERSHIP_ANNOTATION not in node.annotations
    assert site.writes(since).get("nodes", 0) == 0
    node = await site.obey(name, EVERYTHING)
    assert decode_record_annotation(node)["labels"]["example.com/team"] == "web"
    assert keys_of_rules(node) >= {"example.com/team", ROLE, "example.com/note"}
    assert "example.com/agent" not in keys_of_rules(node)  # a running node is not tainted by the migration
    node = await site.obey(name, NONE)
    assert keys_of_rules(node) == {"example.com/other"}


async def test_a_value_of_somebody_else_stays_and_that_is_told(site: Site):
    name = "rules-foreign"
    await site.join(name, labels={"example.com/team": "mine"})
    async with site.ruled(EVERYTHING):
        await site.look(name)
        [told] = await site.events(name, "KeptForOthers")
        assert "another writer has set label example.com/team to 'mine'" in told
        await site.change(name, {"metadata": {"labels": {ROLE: "theirs"}}})
        node = await site.look(name)
        assert node.labels[ROLE] == "theirs"
    for rules in (OTHER_TEAM, NONE):
        node = await site.obey(name, rules)
        assert (node.labels["example.com/team"], node.labels[ROLE]) == ("mine", "theirs")


async def test_keys_of_the_machine_config_are_left_to_talos(site: Site):
    name = "rules-talos"
    owned = {
        "talos.dev/owned-labels": '["example.com/team"]',
        "talos.dev/owned-annotations": '["example.com/note"]',
        "talos.dev/owned-taints": '["example.com/agent"]',
    }
    annotations = owned | {"example.com/note": "Talos's"}
    await site.join(name, labels={"example.com/team": "talos"}, annotations=annotations)
    node = await site.kube.get_node(name)
    of_talos = {"key": "example.com/agent", "value": "talos", "effect": "NoSchedule"}
    others = [msgspec.to_builtins(each) for each in node.spec.taints]
    await site.change(name, {"spec": {"taints": [*others, of_talos]}})
    for rules in (EVERYTHING, OTHER_TEAM, NONE):
        node = await site.obey(name, rules)
        assert node.labels["example.com/team"] == "talos"
        assert node.annotations.items() >= annotations.items()
        assert [each.value for each in node.spec.taints if each.key == "example.com/agent"] == ["talos"]


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


async def test_two_labelers_with_different_rules_leave_nothing_unrecorded(site: Site):
    name = "rules-two"
    await site.join(name)
    async with site.ruled(EVERYTHING), site.ruled(OTHER_TEAM):  # one of them gets each message
        for _ in range(6):
            await site.look(name)
    node = await site.obey(name, NONE)
    assert keys_of_rules(node) == set()


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
    joined = await site.obey(name, EVERYTHING)
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
    node = await site.obey(name, EVERYTHING)
    assert node.annotations[FIELD_OWNERSHIP_ANNOTATION] == joined.annotations[FIELD_OWNERSHIP_ANNOTATION]
    assert await by_kubelet({"annotations": {FIELD_OWNERSHIP_ANNOTATION: FORGED}}) == 200
    node = await site.obey(name, NONE)
    assert node.labels["example.com/guard"] == "on"
    assert "example.com/apart" in {taint.key for taint in node.spec.taints}
    told = await site.events(name, "OwnedRecordUnreadable")
    assert len([each for each in told if "no label" in each]) == 1  # as it joined
    assert len([each for each in told if "another writer has changed it" in each]) == len(told) - 1
