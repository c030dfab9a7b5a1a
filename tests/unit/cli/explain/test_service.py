"""What `talos-ccm explain service` says first, for each way in which a load balancer can wait."""

from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest

from cli.cluster.cloud_accounts import AccountProcess
from cli.cluster.lease_state import LeaseState
from cli.cluster.unavailable import Unavailable
from cli.explain.service.output import explanation_to_json, format_explanation
from cli.explain.service.service_explanation import ServiceEvidence, explain_service, group_left_out
from libs.common.contract.kube_service import (
    BALANCER_ANNOTATION,
    BALANCER_BLOCKED_CONDITION,
    CLASS_FINALIZER,
    KubeService,
    KubeServiceCondition,
    LoadBalancerIngress,
)
from libs.common.contract.node import NodeAddress
from services.cloud.core.balancers.balancer_record import BalancerAccount
from tests.builders import NOW, make_kube_service, make_node
from tests.cli_snapshots import make_kube_event, render_lines

CLASS: Final = "example.com/lb"
RECORD: Final = {BALANCER_ANNOTATION: '{"account":"prod","id":"7"}'}
PENDING: Final = make_kube_service(load_balancer_class=CLASS)
DONE: Final = make_kube_service(
    load_balancer_class=CLASS,
    annotations=RECORD,
    finalizers=(CLASS_FINALIZER,),
    ingress=(LoadBalancerIngress(ip="192.0.2.1", ip_mode="VIP"),),
)
ENDING: Final = make_kube_service(
    load_balancer_class=CLASS, annotations=RECORD, finalizers=(CLASS_FINALIZER,), deleted_at=NOW
)
OTHER_CLASS: Final = BalancerAccount(name="prod", load_balancer_class="example.com/other")
PROD: Final = AccountProcess(
    account=BalancerAccount(name="prod", load_balancer_class=CLASS),
    provider="hcloud",
    place="Deployment kube-system/cloud-prod",
    lease_namespace="kube-system",
    is_ready=True,
    is_switched_on=True,
    is_dry_run=False,
)
NO_LEASE: Final = LeaseState(lease_name="Lease a/b")
LEADING: Final = LeaseState(holder="pod_1", renewed_at=NOW, duration_seconds=90, lease_name="Lease a/b")


def change(**fields: Any) -> dict[str, Any]:
    """The evidence with another state of the account's process."""
    return {"accounts": (msgspec.structs.replace(PROD, **fields),)}


def block(service: KubeService, reason: str) -> KubeService:
    condition = KubeServiceCondition(
        type=BALANCER_BLOCKED_CONDITION, status="True", reason=reason, message="why"
    )
    status = msgspec.structs.replace(service.status, conditions=(condition,))
    return msgspec.structs.replace(service, status=status)


def fail(reason: str) -> dict[str, Any]:
    return {"events": (make_kube_event(reason, "rate limit"),)}


CASES: Final[list[tuple[KubeService, dict[str, Any], str, str]]] = [
    (DONE, {}, "well", "healthy"),
    (PENDING, {}, "moving", "in progress"),
    (ENDING, {}, "moving", "in progress"),
    (PENDING, {"accounts": Unavailable(reason="no right")}, "unknown", "no right"),
    (make_kube_service(load_balancer_class="io.cilium/bgp"), {}, "another's", "none of this controller"),
    (make_kube_service(type="ClusterIP"), {}, "another's", "none of this controller"),
    (make_kube_service(), {}, "stuck", f"Set spec.loadBalancerClass to {CLASS}"),
    (make_kube_service(), {"accounts": ()}, "stuck", "Configure an account with loadBalancers"),
    (PENDING, change(is_switched_on=False), "stuck", "Add service-lb-controller to enabledControllers"),
    (PENDING, change(is_ready=False), "stuck", "cloud-prod has no ready pod"),
    (PENDING, change(is_dry_run=True), "stuck", "Remove --load-balancer-dry-run"),
    (PENDING, {"lease": NO_LEASE}, "stuck", "Lease a/b has no holder"),
    (PENDING, {"at": NOW + timedelta(minutes=2)}, "stuck", "no process leads"),
    (PENDING, fail("SyncLoadBalancerFailed"), "stuck", "rate limit"),
    (DONE, fail("EnsuredLoadBalancer"), "well", "healthy"),
    (block(DONE, "CredentialRejected"), {}, "stuck", "into the Secret of account prod"),
    (block(DONE, "OtherController"), {}, "stuck", "stop the other one"),
    (DONE, change(account=OTHER_CLASS), "stuck", "must delete it first"),
    (ENDING, {"accounts": ()}, "stuck", "talos-ccm-abandon=7"),
    (block(ENDING, "ProjectNotProven"), {}, "stuck", "talos-ccm-abandon=7"),
    (msgspec.structs.replace(ENDING, metadata=msgspec.structs.replace(ENDING.metadata, annotations={})),
     {"accounts": ()}, "stuck", "remove the finalizer by hand"),
]  # fmt: skip


@pytest.mark.parametrize(("service", "other", "state", "words"), CASES)
def test_cause_and_fix(service: KubeService, other: dict[str, Any], state: str, words: str):
    given: dict[str, Any] = {"at": NOW, "accounts": (PROD,), "events": (), "nodes": (), "lease": LEADING}
    explanation = explain_service(ServiceEvidence(service=service, **(given | other)))
    assert explanation.state == state
    assert words in render_lines(format_explanation(explanation))
    assert explanation.exit_status == {"stuck": 1, "unknown": 2}.get(state, 0)
    assert explanation_to_json(explanation)["state"] == state


@pytest.mark.parametrize(
    ("provider", "prefix", "invalid", "valid"),
    [
        ("hcloud", "load-balancer.hetzner.cloud/", {"protocol": "udp"}, {"location": "fsn1"}),
        ("openstack", "loadbalancer.openstack.org/", {"proxy-protocol": "v3"}, {"class": "edge"}),
        (
            "thalassa",
            "loadbalancer.k8s.thalassa.cloud/",
            {"acl-allowed-sources": "office"},
            {"internal": "true"},
        ),
    ],
)
def test_annotations_are_read_as_the_cloud_of_the_account_reads_them(
    provider: str, prefix: str, invalid: dict[str, str], valid: dict[str, str]
):
    annotations = {prefix + name: value for name, value in (invalid | valid).items()}
    service = make_kube_service(load_balancer_class=CLASS, annotations=annotations)
    evidence = ServiceEvidence(service=service, at=NOW, lease=LEADING, **change(provider=provider))
    assert [each.field for each in explain_service(evidence).invalid] == [prefix + name for name in invalid]


@pytest.mark.parametrize(
    ("provider", "provider_id", "left_out"),
    [
        ("hcloud", "hcloud://7", "has no IPv4 address that the load balancer reaches"),
        ("hcloud", "hcloud://bm-7", "no server of this cloud, by its providerID"),
        ("hcloud", "hrobot://7", "no server of this cloud, by its providerID"),
        ("thalassa", "thalassacloud://vm-7", ""),
    ],
)
def test_a_node_of_ipv6_alone_is_left_out_as_by_the_process(provider: str, provider_id: str, left_out: str):
    address = NodeAddress(type="InternalIP", address="fd00::7")
    node = make_node(provider_id=provider_id, addresses=(address,))
    evidence = ServiceEvidence(service=PENDING, at=NOW, nodes=(node,), **change(provider=provider))
    selection = explain_service(evidence).selection
    assert selection is not None
    assert list(group_left_out(selection)) == list(filter(None, [left_out]))


def test_a_load_balancer_that_is_to_stay_cannot_be_given_up():
    blocked = block(DONE, "CredentialRejected")
    evidence = ServiceEvidence(service=blocked, at=NOW, accounts=(PROD,), lease=LEADING)
    assert explain_service(evidence).abandon_command == ""
