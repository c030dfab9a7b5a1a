"""A Node is initialized although the real API server rejects rules; the Node reports the rejection."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from libs.common.contract.node import PROVIDED_NODE_IP_ANNOTATION, Node
from libs.common.contract.services import LABELER
from libs.common.kube.api import KubeApi
from libs.testbed.admission_webhook import AdmissionWebhook, DenialReason, WebhookScope
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import MERGE, KubeletFleet, SimKubelet
from services.labeler.core.own_writes import OwnWrites
from services.labeler.core.plan.plan import ClusterConfig
from services.labeler.node_writer import NodeWriter, Planner
from tests.builders import make_facts
from tests.bus_actors import wait_until
from tests.integration.service_cluster import open_api_of
from tests.node_plans import compile_one_rule, decode_record_annotation, make_planner

LONG = "y" * 1000
CASES = {
    "refused-format": ({}, "{scheduler.alpha.kubernetes.io/preferAvoidPods: 'no JSON'}"),
    "refused-size": (
        {"example.com/state": "x" * 260_500},
        f"{{example.com/a: {LONG}, example.com/b: {LONG}}}",
    ),
}


@pytest.fixture
async def kube(control_plane: ControlPlane, kubelets: KubeletFleet) -> AsyncIterator[KubeApi]:
    async with open_api_of(LABELER, control_plane, kubelets) as api:
        yield api


def planner(name: str, config: ClusterConfig) -> Planner:
    return make_planner(make_facts(node_name=name), config)


def node_api(kube: KubeApi) -> NodeWriter:
    return NodeWriter(
        kube,
        OwnWrites(time.monotonic),
        now=lambda: datetime.now(UTC),
        observe_only=False,
    )


def apart(node: Node) -> bool:
    return "example.com/apart" in {taint.key for taint in node.spec.taints}


@pytest.mark.parametrize("name", CASES)
async def test_a_node_whose_rules_are_refused_is_initialised_with_all_the_rest(
    kube: KubeApi, kubelets: KubeletFleet, name: str
):
    theirs, annotations = CASES[name]
    await kubelets.join(SimKubelet(name=name, annotations={PROVIDED_NODE_IP_ANNOTATION: "10.0.0.5"} | theirs))
    config = compile_one_rule(
        annotations=annotations,
        labels="{node-role.kubernetes.io/web: ''}",
        taints="{example.com/agent: 'waiting:NoSchedule'}",
    )

    plan, nodes = planner(name, config), node_api(kube)
    done = (await nodes.apply(await kube.get_node(name), plan)).plan
    node = await kube.get_node(name)
    assert (done.outcome, node.is_initialized) == ("initialized", True)
    assert node.labels["node-role.kubernetes.io/web"] == ""
    assert "example.com/agent" in {taint.key for taint in node.spec.taints}
    assert "annotations" not in decode_record_annotation(node)
    [told] = [each for each in done.notices if each.reason == "RulesRefused"]
    assert told.message.startswith("Kubernetes rejects annotations of rules: ")
    assert "metadata.annotations" in told.message
    again = (await nodes.apply(node, plan)).plan
    assert (again.outcome, again.summary) == ("unchanged", ())
    after = await kube.get_node(name)  # others, such as the controller-manager, may write it meanwhile
    assert (after.labels, decode_record_annotation(after)) == (node.labels, decode_record_annotation(node))
    await kubelets.delete_node(name)


GUARDED = compile_one_rule(
    annotations="{example.com/note: 'of a rule'}",
    labels="{example.com/team: web}",
    taints="{example.com/apart: 'yes:NoExecute'}",
)


def has_note(node: dict[str, Any]) -> str:
    return "no notes here" if "example.com/note" in node["metadata"].get("annotations", {}) else ""


def has_team(node: dict[str, Any]) -> str:
    return "no teams here" if "example.com/team" in node["metadata"].get("labels", {}) else ""


DISLIKES: dict[str, tuple[tuple[DenialReason, ...], set[str]]] = {  # and which keys of the rule are kept
    "note": ((has_note,), {"example.com/team"}),
    "team": ((has_team,), {"example.com/note"}),
    "both": ((has_note, has_team), set()),
}


@pytest.mark.parametrize(
    ("disliked", "code"),
    [("note", 403), ("note", 409), ("team", 404), ("both", 422), ("note", None)],
    ids=["note-403", "note-409", "team-404", "both-422", "note-by-a-policy"],
)
async def test_a_denial_of_labels_or_annotations_costs_no_node_its_taint(
    kube: KubeApi, kubelets: KubeletFleet, tmp_path: Path, disliked: str, code: int | None
):
    """`code`: that of a webhook; None = by a policy."""
    name, (dislikes, kept) = f"denied-{disliked}-{code or 'policy'}", DISLIKES[disliked]
    await kubelets.join(SimKubelet(name=name, annotations={PROVIDED_NODE_IP_ANNOTATION: "10.0.0.5"}))
    async with AsyncExitStack() as stack:
        if code is None:
            await stack.enter_async_context(policy_against_notes(kubelets, name))
        else:
            webhook = await stack.enter_async_context(run_node_webhook(kubelets, tmp_path, node=name))
            webhook.code = code
            webhook.find_denial_reason = lambda node: next(
                (why for each in dislikes if (why := each(node))), ""
            )
        done = (await node_api(kube).apply(await kube.get_node(name), planner(name, GUARDED))).plan
        node = await kube.get_node(name)
        assert (done.outcome, node.is_initialized, apart(node)) == ("initialized", True, True)
        assert {"example.com/team", "example.com/note"} & {*node.labels, *node.annotations} == kept
        [told] = done.notices
        assert told.reason == "RulesRefused"
        assert ("ValidatingAdmissionPolicy" in told.message) == (code is None)
    await kubelets.delete_node(name)


@asynccontextmanager
async def run_node_webhook(
    kubelets: KubeletFleet, folder: Path, *, node: str
) -> AsyncIterator[AdmissionWebhook]:
    """A webhook that the real API server asks about each write of that one Node, by now."""
    scope = WebhookScope(resources={"": ["nodes"]}, condition=f"object.metadata.name == '{node}'")
    async with AdmissionWebhook.start(f"dislikes-{node}", folder) as webhook:
        await webhook.register(kubelets, scope)
        try:
            webhook.find_denial_reason = lambda node: "not now"
            await wait_until_patch_returns(403, kubelets, node, "example.com/probe")
            yield webhook
        finally:
            await webhook.unregister(kubelets)


async def wait_until_patch_returns(status: int, kubelets: KubeletFleet, name: str, annotation: str) -> None:
    """Return once a dry-run patch of that annotation returns that status."""

    async def is_answered() -> bool:
        body = {"metadata": {"annotations": {annotation: "1"}}}
        path = f"/api/v1/nodes/{name}?dryRun=All"
        answer = await kubelets.request("PATCH", path, body=body, content_type=MERGE)
        return answer.status == status

    await wait_until(is_answered, f"a patch of {annotation} returns {status}")


@asynccontextmanager
async def policy_against_notes(kubelets: KubeletFleet, node: str) -> AsyncIterator[None]:
    """A ValidatingAdmissionPolicy that denies an annotation of that Node, with the default reason Invalid."""
    kinds = {"ValidatingAdmissionPolicy": "validatingadmissionpolicies"}
    kinds["ValidatingAdmissionPolicyBinding"] = "validatingadmissionpolicybindings"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}
    has_none = "!has(object.metadata.annotations) || !('example.com/note' in object.metadata.annotations)"
    specs: dict[str, dict[str, Any]] = {
        "ValidatingAdmissionPolicy": {
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [{"name": "one", "expression": f"object.metadata.name == '{node}'"}],
            "validations": [{"expression": has_none, "message": "the note is immutable"}],
        },
        "ValidatingAdmissionPolicyBinding": {"policyName": node, "validationActions": ["Deny"]},
    }
    group = "admissionregistration.k8s.io/v1"
    try:
        for kind, spec in specs.items():
            body = {"apiVersion": group, "kind": kind, "metadata": {"name": node}, "spec": spec}
            created = await kubelets.request("POST", f"/apis/{group}/{kinds[kind]}", body=body)
            assert created.status == 201, created
        await wait_until_patch_returns(422, kubelets, node, "example.com/note")
        yield
    finally:
        for resource in kinds.values():
            await kubelets.request("DELETE", f"/apis/{group}/{resource}/{node}")
