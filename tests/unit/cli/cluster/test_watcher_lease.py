"""Leases that commands read, and keys that another writer keeps."""

import json
from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest

from cli.cluster.kept_keys import ManagedNode, format_kept_key, report_kept_keys
from cli.cluster.lease_state import LeaseState, read_lease_state
from cli.cluster.machine_events import make_enriched
from cli.cluster.pods import Pod
from cli.cluster.query import ClusterQuery
from cli.cluster.read_cluster import fetch_watcher_lease
from cli.cluster.unavailable import Unavailable
from cli.explain.node.node_explanation import explain_node_evidence
from cli.explain.node.output import explanation_to_json
from cli.lines import format_json
from cli.render.compiled_config import compile_config
from cli.render.facts_file import encode_facts, parse_facts
from cli.render.preview import preview_node
from libs.common.contract.node import APPLY_TAINTS_ANNOTATION, Node, NodeCondition, Taint
from libs.common.contract.services import WATCHER_LEASE_NAME
from libs.common.kube.errors import NotFound
from libs.common.kube.lease import Lease, LeaseSpec
from services.labeler.core.plan.plan import ClusterConfig
from services.lifecycle.core.decide import DeletionPolicy
from tests.builders import NOW, make_facts, make_node
from tests.cli_snapshots import make_evidence, make_running_pod, render_lines
from tests.node_plans import change_metadata, compile_one_rule, plan_and_apply

DEFAULT, MINE, FAR = ("kube-system", WATCHER_LEASE_NAME), ("talos", "mine"), ("talos", WATCHER_LEASE_NAME)


RENAMED = make_running_pod(
    "services.watcher", "--leader-elect-resource-name=mine", "--leader-elect-resource-namespace", "talos"
)


class FakeKube:
    """An API server with these Leases."""

    def __init__(self, *held: tuple[str, str]) -> None:
        self._held = held

    async def get_lease(self, namespace: str, name: str) -> Lease:
        if (namespace, name) not in self._held:
            raise NotFound("there is none", status=404)
        return Lease(spec=LeaseSpec(holder_identity=f"holder of {name}"), document={})


TWO: Final = (RENAMED, make_running_pod("services.watcher"))
NO_RIGHT: Final = Unavailable(reason="no right to list pods")
ALL: Final = {"lease_name": DEFAULT[1], "lease_namespace": DEFAULT[0]}


@pytest.mark.parametrize(
    ("held", "pods", "said", "place", "holder"),
    [
        ((DEFAULT, MINE), (RENAMED,), {}, "talos/mine", "holder of mine"),
        ((DEFAULT,), (RENAMED, RENAMED), {}, "talos/mine", ""),
        ((FAR,), (RENAMED,), {"lease_name": FAR[1]}, "/".join(FAR), f"holder of {FAR[1]}"),
        ((DEFAULT,), (RENAMED,), ALL, "/".join(DEFAULT), f"holder of {DEFAULT[1]}"),
        ((DEFAULT,), TWO, ALL, "/".join(DEFAULT), f"holder of {DEFAULT[1]}"),
        ((), TWO, {}, "unknown", "several releases: select one with --release"),
        ((), (), {}, "/".join(DEFAULT), ""),
        ((DEFAULT,), NO_RIGHT, {}, "/".join(DEFAULT), f"holder of {DEFAULT[1]}"),
        ((), NO_RIGHT, {}, "unknown", "no right to list pods; set --lease-name and"),
        ((), NO_RIGHT, ALL, "/".join(DEFAULT), ""),
    ],
)
async def test_the_lease_is_the_one_that_the_watchers_pods_or_the_caller_name(
    held: tuple[tuple[str, str], ...],
    pods: tuple[Pod, ...] | Unavailable,
    said: dict[str, str],
    place: str,
    holder: str,
):
    query = ClusterQuery(namespace="ccm", **said)  # type: ignore[arg-type]
    found = await fetch_watcher_lease(FakeKube(*held), query, pods)  # type: ignore[arg-type]
    if isinstance(found, Unavailable):
        assert (place, holder in found.reason) == ("unknown", True)
    else:
        assert (found.lease_name or "/".join(DEFAULT), found.holder) == (place, holder)


# ---- the state of a Lease


@pytest.mark.parametrize(("seconds", "is_held"), [(14, True), (15, True), (16, False)])
def test_a_lease_without_a_duration_lasts_15_seconds(seconds: int, is_held: bool):
    lease = LeaseState(holder="w", renewed_at=NOW - timedelta(seconds=seconds))
    assert lease.is_held(NOW) == is_held
    assert lease.is_held(NOW, slack=timedelta(seconds=1))
    assert (lease.why_not_held(NOW) == "was last renewed 16 s ago by w, for 15 s") != is_held
    assert read_lease_state(LeaseSpec()).why_not_held(NOW) == "has no holder"
    held = read_lease_state(LeaseSpec(holder_identity="w", renew_time="2026-03-01T11:59:59.000000Z"))
    assert (held.seconds_since_renewal(NOW), held.why_not_held(NOW)) == (1, "")
    without_time = read_lease_state(LeaseSpec(holder_identity="w"), "talos/mine")
    assert without_time.why_not_held(NOW) == "talos/mine of w has no renew time"


# ---- kept keys; that explain, render and status tell them: integration/test_labeler_rules


ZONE = "topology.kubernetes.io/zone"
FACTS = make_facts(platform="hcloud", provider_id="hcloud://7", region="eu-central", zone="fsn1-dc14")
RULE = "transformations: [{name: one, taints: {example.com/agent: 'waiting:NoExecute'}}]"
TAINT = compile_one_rule(taints="{example.com/agent: 'waiting:NoExecute'}")
READY = (NodeCondition(type="Ready", status="True", last_transition_time="2026-03-01T11:30:00Z"),)


def entry(manager: str, time: str, fields: Any) -> dict[str, Any]:
    return {
        "manager": manager, "operation": "Update", "apiVersion": "v1", "time": time,
        "fieldsType": "FieldsV1", "fieldsV1": fields,
    }  # fmt: skip


def labels(*keys: str) -> dict[str, Any]:
    return {"f:metadata": {"f:labels": {".": {}} | {f"f:{key}": {} for key in keys}}}


MANAGERS = [
    entry("kubelet", "2026-03-01T11:00:00Z", labels("kubernetes.io/hostname")),
    entry("kubectl-label", "2026-03-01T11:45:00Z", labels(ZONE)),
    entry("talos-ccm", "2026-03-01T11:50:00Z", labels(f"{ZONE}s")),
    entry("kube-controller-manager", "2026-03-01T11:10:00Z", {"f:spec": {"f:taints": {}}}),
]
MANAGED = msgspec.Raw(msgspec.json.encode(MANAGERS))
FIX = f"kubectl label node web-1 {ZONE}-"


def overwritten() -> Node:
    """A Node whose zone a person has changed, before the labeler has seen it."""
    node = plan_and_apply(make_node(conditions=READY), FACTS, ClusterConfig())
    return change_metadata(node, labels={ZONE: "foo"})


def withheld() -> Node:
    """A Node of the reference controller, before the labeler has seen the taint of the rule."""
    return make_node(taints=(), provider_id="hcloud://7", conditions=READY)


NODES = [overwritten(), plan_and_apply(overwritten(), FACTS, ClusterConfig())]


def managed(node: Node, managed_fields: msgspec.Raw = MANAGED) -> Node:
    """Return the Node as the API server returns it."""
    body = msgspec.to_builtins(node)
    body["metadata"]["managedFields"] = managed_fields
    return msgspec.json.decode(msgspec.json.encode(body), type=ManagedNode)


def text_of(node: Node, managed_fields: msgspec.Raw = MANAGED) -> str:
    reports = report_kept_keys(managed(node, managed_fields))
    return render_lines([line for each in reports for line in format_kept_key(each)], None)


def test_explain_tells_it_and_calls_the_node_not_healthy():
    node = managed(NODES[1])
    found = make_evidence(node, FACTS)
    explanation = explain_node_evidence(found, DeletionPolicy())
    said = json.loads(format_json(explanation_to_json(explanation)))
    [told] = said["keptKeys"]
    assert (told["manager"], told["since"], told["fix"]) == ("kubectl-label", "2026-03-01T11:45:00Z", FIX)
    assert (told["kind"], told["key"], told["current"], told["desired"]) == (
        "label",
        ZONE,
        "foo",
        "fsn1-dc14",
    )
    assert ZONE in said["labeler"]["reason"]
    assert explanation.exit_status == 0, "an operator may have set it on purpose"


def test_a_withheld_taint_is_told_with_its_opt_in():
    config = compile_config(RULE, "rules.yaml")
    [report] = preview_node(make_enriched(withheld(), FACTS, NOW), config, now=NOW).kept_keys
    recorded = plan_and_apply(withheld(), FACTS, TAINT)
    assert report_kept_keys(managed(recorded)) == (report,)
    assert report.fix == f"kubectl annotate node web-1 {APPLY_TAINTS_ANNOTATION}=true"
    assert (report.manager, report.since) == ("", None)
    assert "is not set" in text_of(recorded)


def test_the_newest_client_counts_and_for_a_taint_the_one_that_wrote_the_list():
    node = plan_and_apply(make_node(), FACTS, TAINT)
    node = change_metadata(node, taints=(Taint(key="example.com/agent", value="x", effect="NoExecute"),))
    [report] = report_kept_keys(managed(node))
    assert (report.manager, report.current) == ("kube-controller-manager", "x")
    assert report.fix == (
        "kubectl taint node web-1 example.com/agent:NoExecute-"
        ", then remove it from the rule, and add it to the rule again"
    )
    later = msgspec.Raw(msgspec.json.encode([*MANAGERS, entry("lens", "2026-03-01T11:46:00Z", labels(ZONE))]))
    assert "set by lens, 2026-03-01 11:46:00 UTC or before" in text_of(NODES[0], later)


@pytest.mark.parametrize(
    "managed", [b"[]", b"null", b'[{"time":"x"}]', b'[{"fieldsV1":[]}]', b'[{"fieldsV1":{"f:metadata":1}}]']
)
def test_without_usable_managed_fields_the_client_is_unknown(managed: bytes):
    assert "set by an unknown client\n" in text_of(NODES[0], msgspec.Raw(managed))


def test_managed_fields_are_not_written_to_a_facts_file():
    node = NODES[0]
    file = encode_facts([make_enriched(managed(node), FACTS, NOW)])
    assert b"managedFields" not in file
    assert [each.node for each in parse_facts(file)] == [node]
