"""The taint of a machine that shuts down, and the flags of lifecycle."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from libs.common.cloud_config.model import NodeSelectorRequirement, NodeSelectorTerm, Ownership
from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.node import Node, Taint
from libs.common.contract.services import LIFECYCLE_LEASE_NAME, WATCHER_LEASE_NAME
from libs.common.settings.read_settings import SettingsError, read_settings
from services.lifecycle.core.decide import (
    SPOT,
    Delete,
    DeletionPolicy,
    Keep,
    ReplicaStatus,
    decide,
    explain_exclusion,
)
from services.lifecycle.core.evidence import assess_gcp_spot
from services.lifecycle.core.instance_reports import InstanceReports
from services.lifecycle.core.node_change import SHUTDOWN_TAINT, NodeChange
from services.lifecycle.core.node_index import DeletionCase
from services.lifecycle.core.shutdown_taint import plan_shutdown_taint
from services.lifecycle.settings import LifecycleSettings
from tests.builders import NOW, UNINITIALIZED, make_facts
from tests.instance_reports import make_exists, make_recorded_node, make_shut_down, make_unknown
from tests.lifecycle_actors import make_answering, make_lost_node, make_ready_condition, make_unreachable

GOING = replace(make_facts(), stage="shutting down")
NODE = make_lost_node()
TAINTED = make_lost_node(taints=(SHUTDOWN_TAINT,))
PROVEN = ReplicaStatus(uptime=timedelta(hours=2), leading_for=timedelta(hours=2))


def silent(
    node: Node = NODE, facts: MachineFacts | None = GOING, kind: str = "refused", step: str = "Nodename"
) -> NodeUnreachable:
    fault = MachineFault(kind=kind, step=step, message="no")  # type: ignore[arg-type]
    return make_unreachable(node, fault=fault, last_known=facts)


def plan_taint(node: Node, report: NodeEnriched | NodeUnreachable | None, **fields: Any) -> NodeChange | None:
    return plan_shutdown_taint(DeletionCase(node=node, report=report, now=NOW, **fields))


@pytest.mark.parametrize("kind", ["refused", "timeout"])
def test_a_machine_that_said_that_it_goes_and_is_silent_since_is_shut_down(kind: str):
    change = plan_taint(NODE, silent(kind=kind))
    assert change is not None
    assert change.kind == "set taint node.cloudprovider.kubernetes.io/shutdown:NoSchedule"
    assert change.changes.set_taints == (SHUTDOWN_TAINT,)


@pytest.mark.parametrize(
    ("node", "word"),
    [
        (NODE, None),
        (NODE, silent(facts=None)),
        (NODE, silent(facts=make_facts())),
        (NODE, silent(facts=replace(make_facts(), stage="rebooting"))),
        *(
            (NODE, silent(kind=kind))
            for kind in ("wrong_machine", "certificate", "permission", "no_endpoint")
        ),
        (NODE, silent(step="connect")),  # Talos' endpoint was not reached: the machine may well be back
        (NODE, silent(make_lost_node(uid="uid-0"))),
        (make_lost_node(conditions=(make_ready_condition("True"),)), silent()),
        (make_lost_node(conditions=()), silent()),
        (NODE, make_answering(NODE)),
        (TAINTED, silent()),
        (TAINTED, replace(make_answering(TAINTED), facts=GOING)),
        (TAINTED, silent(facts=None)),
        (TAINTED, None),
    ],
)
def test_anything_less_changes_nothing(node: Node, word: NodeEnriched | NodeUnreachable | None):
    assert plan_taint(node, word) is None


@pytest.mark.parametrize(
    ("node", "word"),
    [
        (TAINTED, make_answering(TAINTED)),
        (make_lost_node(taints=(SHUTDOWN_TAINT,), conditions=(make_ready_condition("True"),)), None),
    ],
)
def test_the_taint_goes_when_the_machine_answers_or_the_node_is_ready(
    node: Node, word: NodeEnriched | NodeUnreachable | None
):
    change = plan_taint(node, word)
    assert change is not None
    assert change.changes.remove_taints == (SHUTDOWN_TAINT,)


RECORDED = make_recorded_node()


def plan_by_cloud(report: Any, node: Node = RECORDED, machine: Any = None) -> NodeChange | None:
    reports = InstanceReports()
    reports.apply(report, 0.0)
    return plan_taint(node, machine or silent(RECORDED, facts=None), instances=reports.get("web-1"))


def test_a_silent_machine_that_its_account_reports_as_off_is_shut_down():
    change = plan_by_cloud(make_shut_down(RECORDED))
    assert change is not None
    assert change.changes.set_taints == (SHUTDOWN_TAINT,)
    assert "account prod reported at" in change.reason


@pytest.mark.parametrize(
    ("report", "changes"),
    [
        (make_exists(RECORDED), {}),
        (make_unknown(RECORDED), {}),
        (make_shut_down(RECORDED, account="other"), {}),
        (make_shut_down(RECORDED, node_uid="uid-0"), {}),
        (make_shut_down(RECORDED, provider_id="hcloud://2"), {}),
        (make_shut_down(RECORDED), {"machine": make_answering(RECORDED)}),
        (make_shut_down(NODE), {"node": NODE}),
        (make_shut_down(RECORDED), {"node": make_recorded_node(conditions=(make_ready_condition("True"),))}),
    ],
    ids=[
        "it-exists", "unknown", "account-without-the-record", "former-node", "another-instance",
        "machine-answers", "no-record", "ready",
    ],
)  # fmt: skip
def test_an_account_that_reports_less_taints_nothing(report: Any, changes: dict[str, Any]):
    assert plan_by_cloud(report, **changes) is None


# ---- GCP spot machines

SPOT_LABELS = {
    "node.cloudprovider.kubernetes.io/platform": "gcp",
    "node.cloudprovider.kubernetes.io/lifecycle": "spot",
}
NOT_READY = Taint(key="node.kubernetes.io/not-ready", effect="NoExecute")
PREEMPTED = make_lost_node(labels=SPOT_LABELS, taints=(NOT_READY,), provider_id="gce://p/z/i")
SOON = NOW + timedelta(seconds=31)  # after its creation


def test_a_preempted_spot_machine_is_deleted_at_once_where_that_is_asked_for():
    case = DeletionCase(node=PREEMPTED, now=SOON)
    judged = decide(case, DeletionPolicy(deletes_gcp_spot=True), PROVEN)
    assert isinstance(judged, Delete)
    assert judged.kind == SPOT
    assert isinstance(decide(case, DeletionPolicy(), PROVEN), Keep)
    young = ReplicaStatus(uptime=timedelta(minutes=9), leading_for=timedelta(minutes=9))
    assert isinstance(decide(case, DeletionPolicy(deletes_gcp_spot=True), young), Keep)


@pytest.mark.parametrize(
    "changed",
    [
        {"labels": {**SPOT_LABELS, "node.cloudprovider.kubernetes.io/platform": "aws"}},
        {"labels": {}},
        {"taints": ()},
        {"taints": (Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule"),)},
        {"taints": (NOT_READY, UNINITIALIZED)},
        {"taints": (Taint(key="node.kubernetes.io/unreachable", effect="NoExecute"),)},
        {"provider_id": ""},
        {"conditions": (make_ready_condition("True"),)},
        {"conditions": ()},
    ],
)
def test_each_of_the_references_conditions_is_needed(changed: dict[str, object]):
    usual = {"labels": SPOT_LABELS, "taints": (NOT_READY,), "provider_id": "gce://p/z/i"}
    node = make_lost_node(**(usual | changed))  # type: ignore[arg-type]
    assert len(assess_gcp_spot(node, SOON).missing) == 1
    assert assess_gcp_spot(PREEMPTED, SOON).missing == ()
    assert len(assess_gcp_spot(PREEMPTED, NOW + timedelta(seconds=30)).missing) == 1


# ---- whose Nodes are ours


def test_a_node_whose_owner_is_not_known_for_certain_is_left_alone():
    schemes = Ownership(provider_id_schemes=("talos",))
    assert explain_exclusion(schemes, NODE) == ""
    assert "no providerID" in explain_exclusion(schemes, make_lost_node(provider_id=""))
    assert "hcloud://1" in explain_exclusion(schemes, make_lost_node(provider_id="hcloud://1"))
    assert explain_exclusion(Ownership(), make_lost_node(provider_id="")) == ""
    team = NodeSelectorTerm(requirements=(NodeSelectorRequirement(key="team", operator="In", values=("a",)),))
    assert explain_exclusion(Ownership(selector=(team,)), NODE)
    assert explain_exclusion(Ownership(selector=(team,)), make_lost_node(labels={"team": "a"})) == ""


# ---- flags


def read(*arguments: str) -> LifecycleSettings:
    return read_settings([LifecycleSettings], arguments, {}).get(LifecycleSettings)


@pytest.mark.parametrize(
    ("said", "deletes", "warned"), [((), False, True), (("=true",), True, False), (("=false",), False, False)]
)
def test_preempted_spot_machines_are_kept_with_a_warning_unless_it_is_said(
    said: tuple[str, ...], deletes: bool, warned: bool
):
    reading = read_settings([LifecycleSettings], [f"--delete-preempted-gcp-spot{each}" for each in said], {})
    assert reading.get(LifecycleSettings).deletion_policy.deletes_gcp_spot is deletes
    assert any("which the reference deletes" in each for each in reading.warnings) is warned


def test_a_second_instance_gives_its_lease_another_name():
    assert read().lease_name == LIFECYCLE_LEASE_NAME
    assert read("--lifecycle-lease-name=lifecycle-b").lease_name == "lifecycle-b"


@pytest.mark.parametrize(
    ("name", "message"), [("", "an empty name"), (WATCHER_LEASE_NAME, "the name of the watcher's Lease")]
)
def test_a_lease_that_is_none_or_anothers_stops_the_start(name: str, message: str):
    with pytest.raises(SettingsError, match=message):
        read(f"--lifecycle-lease-name={name}")
