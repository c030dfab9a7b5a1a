"""`talos-ccm doctor` reports no problem that a clock, a moment or the operator's configuration explains."""

from datetime import timedelta
from typing import Final

import msgspec
import pytest

from cli.cluster.certificate_signing_request import CertificateSigningRequest, CsrCondition, CsrStatus
from cli.cluster.kube_objects import Container, Meta, PodSpec, PodTemplate, Workload, WorkloadSpec
from cli.cluster.unavailable import Unavailable
from tests.builders import make_node
from tests.csr_actors import make_serving_request
from tests.doctor_cases import (
    PREFIX,
    SECOND,
    format_observations,
    make_lease,
    make_remote_clock,
    make_snapshot,
    run_check,
)

HOUR: Final = timedelta(hours=1)
OF_TEAM_A: Final = """
ownership:
  nodeSelector:
    - matchExpressions: [{key: team, operator: In, values: [a]}]
"""
HELD_BY_OURS: Final = f"{PREFIX}-watcher-0_b0c1"


def test_who_leads_is_held_against_the_api_servers_clock_and_not_ours():
    led = make_lease(HELD_BY_OURS, age=HOUR)
    ours_is_ahead = make_snapshot(leases=(led,), server_clock=make_remote_clock(-HOUR))
    assert run_check("controllers", ours_is_ahead).state == "ok"
    dead = make_lease(HELD_BY_OURS, age=timedelta())
    ours_is_behind = make_snapshot(leases=(dead,), server_clock=make_remote_clock(HOUR))
    assert "no watcher leads" in format_observations("controllers", ours_is_behind)


def test_a_leader_that_has_just_died_is_no_stranger_who_leads():
    gone = f"{PREFIX}-watcher-old_a1"
    waits = format_observations(
        "controllers", make_snapshot(leases=(make_lease(gone, age=30 * SECOND),)), "unknown"
    )
    assert f"{gone}, the last holder of Lease kube-system/cloud-controller-manager-talos, is gone" in waits
    assert "another controller leads" in format_observations(
        "controllers", make_snapshot(leases=(make_lease(gone, age=3 * SECOND),))
    )


def approved(node: str) -> CertificateSigningRequest:
    request = make_serving_request("csr-1", node=node)
    given = CsrCondition(type="Approved", reason="approved by their own")
    return CertificateSigningRequest(
        metadata=request.metadata, spec=request.spec, status=CsrStatus(conditions=(given,))
    )


def another_approver() -> Workload:
    container = Container(name="other", image="ghcr.io/postfinance/kubelet-csr-approver:v1.2")
    template = PodTemplate(spec=PodSpec(containers=(container,)))
    meta = Meta(name="other", namespace="infra")
    return Workload(kind="Deployment", metadata=meta, spec=WorkloadSpec(replicas=1, template=template))


@pytest.mark.parametrize(("team", "state"), [("a", "wrong"), ("b", "ok")])
def test_whoever_approves_for_nodes_that_the_file_leaves_to_others_may(team: str, state: str):
    node = make_node("web-1", labels={"team": team})
    found = make_snapshot(nodes=(node,), requests=(approved("web-1"),), config=OF_TEAM_A)
    assert run_check("approvers", found).state == state


def test_an_approver_beside_ours_is_told_unless_the_file_says_whose_nodes_are_whose():
    beside = make_snapshot(workloads=(another_approver(),))
    assert "Deployment infra/other" in format_observations("approvers", beside)
    assert run_check("approvers", msgspec.structs.replace(beside, config=OF_TEAM_A)).state == "ok"


@pytest.mark.parametrize(("team", "state"), [("a", "unknown"), ("b", "ok")])
def test_a_kubelet_whose_node_the_file_leaves_to_others_need_not_ask(team: str, state: str):
    node, mute = make_node("web-1", labels={"team": team}), {"web-1": Unavailable(reason="no such resource")}
    found = make_snapshot(nodes=(node,), serving=mute, config=OF_TEAM_A)
    assert run_check("serving-certificates", found).state == state
