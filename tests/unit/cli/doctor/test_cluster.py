"""What `talos-ccm doctor` makes of the cluster around: kubelets, Talos, NATS, clocks, others like it."""

from datetime import datetime, timedelta

import msgspec
import pytest

from cli.cluster.certificate_signing_request import CertificateSigningRequest, CsrCondition, CsrStatus
from cli.cluster.installation import Installation
from cli.cluster.kube_objects import (
    Container,
    Meta,
    PodSpec,
    PodTemplate,
    TalosAccount,
    TalosAccountSpec,
    TalosAccountStatus,
    Workload,
    WorkloadSpec,
)
from cli.cluster.unavailable import AbsentObject, Unavailable
from cli.doctor.checks.competing_controllers import allocates_pod_cidrs
from cli.doctor.talos_credential_report import ProbeResult, decode_report
from cli.inside.flow_snapshot import CertificateSnapshot, FlowUnavailable
from libs.common.contract.node import PROVIDED_NODE_IP_ANNOTATION, Node, ObjectMeta
from libs.common.contract.signing_request import (
    KUBELET_SERVING,
    NODE_USER_PREFIX,
    NODES_GROUP,
    SigningRequestSpec,
)
from libs.testbed.pki import CertificateAuthority
from tests.builders import NOW, make_node
from tests.doctor_cases import (
    PREFIX,
    SECOND,
    format_observations,
    make_controller_manager,
    make_flow_snapshot,
    make_installation,
    make_lease,
    make_remote_clock,
    make_snapshot,
    make_talos_report,
    run_check,
)

NOT_ALLOWED = Unavailable(reason="it takes the right to list nodes", required_permission="list nodes")
FOREIGN_OWNERSHIP = "ownership:\n  providerIDSchemes: [talos]\n"


def without_annotation(node: Node) -> Node:
    annotations = {k: v for k, v in node.annotations.items() if k != PROVIDED_NODE_IP_ANNOTATION}
    return msgspec.structs.replace(
        node, metadata=msgspec.structs.replace(node.metadata, annotations=annotations)
    )


# ---- kubelets


def test_a_kubelet_that_is_not_external_is_told_with_the_patch_and_that_the_node_has_to_join_again():
    told = format_observations(
        "kubelets",
        make_snapshot(nodes=(without_annotation(make_node("db-1", taints=())), make_node("web-1"))),
    )
    assert "db-1: no taint" in told
    assert "without --cloud-provider=external" in told
    assert "kubectl delete node db-1" in told
    assert "web-1" not in told


def test_an_external_kubelet_that_does_not_say_where_it_is_is_told_apart():
    waiting = without_annotation(make_node("db-1"))
    named = without_annotation(make_node("db-2", taints=(), provider_id="talos://metal/db-2"))
    told = format_observations("kubelets", make_snapshot(nodes=(waiting, named)))
    assert "db-1, db-2: no annotation" in told
    assert "--node-ip" in told
    assert "--cloud-provider=external, so no controller" not in told


def test_an_annotation_that_is_no_address_is_told():
    told = format_observations(
        "kubelets",
        make_snapshot(nodes=(make_node("web-1", annotations={PROVIDED_NODE_IP_ANNOTATION: "localhost"}),)),
    )
    assert "web-1: annotation" in told
    assert "is not an IP address" in told


def test_nodes_of_others_are_left_alone_where_ownership_says_so():
    others = without_annotation(make_node("aws-1", taints=(), provider_id="aws:///i-1"))
    assert run_check("kubelets", make_snapshot(nodes=(others,))).state == "wrong"
    assert run_check("kubelets", make_snapshot(nodes=(others,), config=FOREIGN_OWNERSHIP)).state == "ok"


def test_nodes_that_may_not_be_listed_are_no_wrong_ones():
    assert ("kubectl auth can-i list nodes") in format_observations(
        "kubelets", make_snapshot(nodes=NOT_ALLOWED), "unknown"
    )


# ---- serving certificates


def filed(node: str, *conditions: CsrCondition) -> CertificateSigningRequest:
    spec = SigningRequestSpec(
        signer_name=KUBELET_SERVING,
        username=f"{NODE_USER_PREFIX}{node}",
        groups=(NODES_GROUP,),
        usages=(),
        request=b"",
    )
    meta = ObjectMeta(name=f"csr-{node}", creation_timestamp=NOW)
    return CertificateSigningRequest(metadata=meta, spec=spec, status=CsrStatus(conditions=conditions))


def test_a_request_shows_that_the_kubelet_asks_whatever_else_is_not_known():
    mute = {"web-1": Unavailable(reason="x")}
    check = run_check("serving-certificates", make_snapshot(requests=(filed("web-1"),), serving=mute))
    assert check.state == "ok"


def test_a_kubelet_that_signs_for_itself_is_told_with_the_flag():
    told = format_observations("serving-certificates", make_snapshot(serving={"web-1": False}))
    assert "rotate-server-certificates" in told
    assert "web-1" in told


def test_a_kubelet_of_which_nothing_is_known_is_neither_right_nor_wrong():
    mute = {
        "web-1": Unavailable(
            reason="it takes the right to get nodes/proxy", required_permission="get nodes/proxy"
        )
    }
    told = format_observations("serving-certificates", make_snapshot(serving=mute), "unknown")
    assert "kubectl auth can-i get nodes/proxy" in told


def test_nobody_has_to_ask_where_nobody_approves():
    here = make_installation(without=("csr",))
    assert run_check("serving-certificates", make_snapshot(here=here, serving={"web-1": False})).state == "ok"
    assert run_check("approvers", make_snapshot(here=here)).state == "ok"


# ---- the Talos credential


def an_account(*roles: str, failure: str = "") -> TalosAccount:
    return TalosAccount(
        metadata=Meta(name="x"),
        spec=TalosAccountSpec(roles=roles),
        status=TalosAccountStatus(failure_reason=failure),
    )


def test_what_talos_refuses_is_told_in_its_words():
    told = format_observations(
        "talos-credential",
        make_snapshot(talos_account=an_account("os:reader", failure="namespace not allowed")),
    )
    assert "namespace not allowed" in told
    assert "add kube-system to machine.features.kubernetesTalosAPIAccess.allowedKubernetesNamespaces" in told


def test_a_cluster_without_the_kind_and_one_without_the_object_differ():
    told = format_observations(
        "talos-credential", make_snapshot(talos_account=AbsentObject(), talos_kind=False)
    )
    assert "kubernetesTalosAPIAccess" in told
    told = format_observations("talos-credential", make_snapshot(talos_account=AbsentObject()))
    assert told.startswith("ServiceAccount.talos.dev kube-system/")


@pytest.mark.parametrize("roles", [("os:admin",), ("os:reader", "os:operator"), ()])
def test_another_role_than_the_reader_is_wrong(roles: tuple[str, ...]):
    assert "os:reader" in format_observations(
        "talos-credential", make_snapshot(talos_account=an_account(*roles))
    )


def test_without_the_service_nobody_reaches_talos():
    assert "Service default/talos does not exist" in format_observations(
        "talos-credential", make_snapshot(talos_service=False)
    )


def test_without_talos_there_is_nothing_to_check():
    here = make_installation(without=("metadata",))
    for check in ("talos-credential", "talos"):
        assert (
            run_check(
                check, make_snapshot(here=here, talos_account=AbsentObject(), talos=Unavailable(reason="x"))
            ).state
            == "ok"
        )


# ---- Talos, asked in the pod


def test_a_credential_that_is_not_valid_is_told_in_metadatas_words():
    told = format_observations(
        "talos", make_snapshot(talos=make_talos_report(problem="our client certificate expired 2 h ago"))
    )
    assert "expired 2 h ago" in told
    assert f"get serviceaccounts.talos.dev {PREFIX}-talos-secrets" in told


def test_a_role_that_does_not_suffice_is_told():
    assert "has the roles os:etcd" in format_observations(
        "talos", make_snapshot(talos=make_talos_report(roles=("os:etcd",)))
    )


def test_endpoints_that_do_not_answer_are_told_and_machines_are_not_blamed_for_it():
    silent = (ProbeResult(address="talos.default:50000", fault="connection refused"),)
    mute = (ProbeResult(address="10.0.0.5", fault="no answer"),)
    told = format_observations(
        "talos", make_snapshot(talos=make_talos_report(endpoints=silent, machines=mute))
    )
    assert "no endpoint answers: talos.default:50000: connection refused" in told
    assert "10.0.0.5" not in told
    told = format_observations("talos", make_snapshot(talos=make_talos_report(machines=mute)))
    assert "10.0.0.5: no answer" in told
    assert "talos-ccm explain node" in told


def test_what_travels_from_the_pod_is_read_and_what_does_not_is_refused():
    assert decode_report(msgspec.json.encode(make_talos_report())) == make_talos_report()
    for junk in (b"", b"{}", b'{"type":"FlowSeen.v1"}', b"[" * 100_000):
        with pytest.raises(ValueError, match="inside talos"):
            decode_report(junk)


# ---- clocks


@pytest.mark.parametrize(("seconds", "word"), [(7, "behind"), (-9, "ahead of")])
def test_a_clock_that_differs_from_the_api_servers_is_told(seconds: int, word: str):
    told = format_observations(
        "clock",
        make_snapshot(
            server_clock=make_remote_clock(seconds * SECOND), pod_clock=make_remote_clock(seconds * SECOND)
        ),
    )
    assert f"s {word} the API server's" in told
    assert "metadata's node" not in told


def test_the_clock_of_the_pods_node_is_held_against_the_api_servers_and_not_against_ours():
    told = format_observations("clock", make_snapshot(pod_clock=make_remote_clock(timedelta(minutes=20))))
    assert "the clock of metadata's node is 19 min ahead of the API server's" in told
    assert run_check("clock", make_snapshot(pod_clock=make_remote_clock(3 * SECOND))).state == "ok"


def test_a_slow_answer_is_no_skew():
    slow = make_remote_clock()
    slow = msgspec.structs.replace(slow, responded_at=slow.requested_at + timedelta(minutes=1))
    assert run_check("clock", make_snapshot(server_clock=slow, pod_clock=slow)).state == "ok"


def test_a_certificate_from_the_future_is_told():
    told = format_observations(
        "clock", make_snapshot(talos=make_talos_report(not_before=NOW + timedelta(minutes=3)))
    )
    assert "valid only from" in told


# ---- NATS


def test_a_missing_stream_missing_durables_and_a_silent_leader_are_told():
    assert "stream TALOSCCM does not exist" in format_observations(
        "nats", make_snapshot(flow=make_flow_snapshot(stream=None))
    )
    queues = tuple(msgspec.structs.replace(q, exists=q.service != "csr") for q in make_flow_snapshot().queues)
    assert "missing durable consumers: csr-requests" in format_observations(
        "nats", make_snapshot(flow=make_flow_snapshot(queues=queues))
    )
    assert ("no leader heartbeat: all other services pause") in format_observations(
        "nats", make_snapshot(flow=make_flow_snapshot(leading=None))
    )
    leading = make_flow_snapshot().leading
    assert leading
    old = msgspec.structs.replace(leading, published_at=NOW - timedelta(minutes=2))
    assert "no leader heartbeat for 120 s" in format_observations(
        "nats", make_snapshot(flow=make_flow_snapshot(leading=old))
    )


def test_a_service_that_takes_no_part_is_told_and_one_that_is_not_installed_is_not():
    services = tuple(
        msgspec.structs.replace(one, is_present=False, why="no client pulls")
        if one.service == "labeler"
        else one
        for one in make_flow_snapshot().services
    )
    told = format_observations("nats", make_snapshot(flow=make_flow_snapshot(services=services)))
    assert "labeler is not active: no client pulls" in told
    without = make_installation(without=("labeler",))
    assert (
        run_check("nats", make_snapshot(here=without, flow=make_flow_snapshot(services=services))).state
        == "ok"
    )


def test_a_stream_that_fills_and_dead_letters_are_told():
    stream = make_flow_snapshot().stream
    assert stream
    full = msgspec.structs.replace(stream, bytes=950)
    assert "95 % full" in format_observations("nats", make_snapshot(flow=make_flow_snapshot(stream=full)))
    assert "3 dead letters" in format_observations(
        "nats", make_snapshot(flow=make_flow_snapshot(dead_count=3))
    )


def test_nats_that_cannot_be_asked_is_told_with_why():
    told = format_observations(
        "nats", make_snapshot(flow=FlowUnavailable(reason="no pod of watcher is ready")), "unknown"
    )
    assert "no pod of watcher is ready" in told


def test_an_authority_that_ends_is_told_a_year_before():
    pem = CertificateAuthority.make(common_name="nats")
    ends = pem.certificate.not_valid_after_utc
    text = pem.pem.decode()

    def at(moment: datetime) -> str:
        return run_check("nats", make_snapshot(authority=text, at=moment)).state

    assert at(ends - timedelta(days=366)) == "ok"
    assert at(ends - timedelta(days=364)) == "wrong"
    assert "expired" in format_observations("nats", make_snapshot(authority=text, at=ends + SECOND))
    assert "with ca.crt does not exist" in format_observations(
        "nats", make_snapshot(authority=AbsentObject())
    )
    assert "contains no certificate" in format_observations("nats", make_snapshot(authority="x"))


@pytest.mark.parametrize(("days", "state"), [(91, "ok"), (89, "wrong"), (-1, "wrong")])
def test_a_servers_certificate_that_the_keeper_should_have_renewed_is_told(days: int, state: str):
    shown = CertificateSnapshot(name="nats-server", expires_at=NOW + timedelta(days=days))
    other = CertificateSnapshot(name="nats-authority", expires_at=NOW)  # judged by its ConfigMap
    check = run_check("nats", make_snapshot(flow=make_flow_snapshot(certificates=(shown, other))))
    assert check.state == state
    if state == "wrong":
        assert "--container keeper" in check.findings[0].commands[0]
        own = msgspec.structs.replace(make_installation(), nats=None)
        told = format_observations(
            "nats",
            make_snapshot(here=own, flow=make_flow_snapshot(certificates=(shown,)), authority=AbsentObject()),
        )
        assert "not part of the chart" in told


def test_one_process_needs_no_nats():
    process = make_installation().processes[0]
    everything = tuple(w for p in make_installation().processes for w in p.services)
    one = msgspec.structs.replace(process, services=everything)
    here = Installation(namespace="kube-system", release=PREFIX, processes=(one,))
    assert (
        run_check(
            "nats", make_snapshot(here=here, flow=FlowUnavailable(reason="x"), authority=AbsentObject())
        ).state
        == "ok"
    )


# ---- who else does the same


@pytest.mark.parametrize(
    ("flags", "gives"),
    [
        (("--allocate-node-cidrs=true",), True),
        (("--allocate-node-cidrs", "--controllers=*,tokencleaner"), True),
        (("--allocate-node-cidrs=true", "--controllers=*,-node-ipam-controller"), False),
        (("--allocate-node-cidrs=true", "--controllers=*,-nodeipam"), False),
        (("--allocate-node-cidrs=true", "--controllers=tokencleaner"), False),
        (("--allocate-node-cidrs=false",), False),
        ((), False),
    ],
)
def test_kube_controller_managers_flags_are_read_as_it_reads_them(flags: tuple[str, ...], gives: bool):
    assert allocates_pod_cidrs(Container(name="kcm", args=flags)) is gives
    state = run_check("pod-cidrs", make_snapshot(system_pods=(make_controller_manager(*flags),))).state
    assert state == ("wrong" if gives else "ok")


def test_two_allocators_are_wrong_only_where_ipam_runs():
    manager = (make_controller_manager("--allocate-node-cidrs=true"),)
    assert "pod-cidrs-patch.yaml" in format_observations("pod-cidrs", make_snapshot(system_pods=manager))
    here = make_installation(without=("ipam",))
    assert run_check("pod-cidrs", make_snapshot(here=here, system_pods=manager)).state == "ok"
    assert run_check("pod-cidrs", make_snapshot(system_pods=())).state == "unknown"


def another(image: str, *args: str, replicas: int = 1) -> Workload:
    container = Container(name="c", image=image, args=args)
    template = PodTemplate(spec=PodSpec(containers=(container,)))
    return Workload(
        metadata=Meta(name="other", namespace="infra"),
        spec=WorkloadSpec(replicas=replicas, template=template),
        kind="Deployment",
    )


@pytest.mark.parametrize(
    ("image", "args", "state"),
    [
        ("ghcr.io/siderolabs/talos-cloud-controller-manager:v1.12.0", (), "wrong"),
        ("hetznercloud/hcloud-cloud-controller-manager:v1.20", (), "wrong"),
        ("hetznercloud/hcloud-cloud-controller-manager:v1.20", ("--controllers=*,-cloud-node",), "ok"),
        ("registry.k8s.io/kube-controller-manager:v1.36.0", (), "ok"),
        ("quay.io/cilium/operator:v1.17", (), "ok"),
        ("ghcr.io/sergelogvinov/proxmox-ccm:v1", (), "wrong"),
    ],
)
def test_another_cloud_controller_manager_is_told(image: str, args: tuple[str, ...], state: str):
    assert run_check("controllers", make_snapshot(workloads=(another(image, *args),))).state == state


def test_another_one_that_is_scaled_to_nothing_or_has_nodes_of_its_own_is_not_told():
    other = another("hetznercloud/hcloud-cloud-controller-manager:v1.20", replicas=0)
    assert run_check("controllers", make_snapshot(workloads=(other,))).state == "ok"
    other = another("hetznercloud/hcloud-cloud-controller-manager:v1.20")
    assert run_check("controllers", make_snapshot(workloads=(other,), config=FOREIGN_OWNERSHIP)).state == "ok"


def test_who_leads_is_held_against_our_pods():
    foreign = (make_lease("somebody_1"),)
    assert ("held by somebody_1, which is no pod in kube-system") in format_observations(
        "controllers", make_snapshot(leases=foreign)
    )
    assert "has no holder" in format_observations("controllers", make_snapshot(leases=()))
    old = (make_lease(f"{PREFIX}-watcher-0_1", age=timedelta(minutes=5)),)
    assert (f"last holder: {PREFIX}-watcher-0_1") in format_observations(
        "controllers", make_snapshot(leases=old)
    )
    upstream = (*make_snapshot().leases, make_lease("cp-1_x", "cloud-controller-manager"))  # type: ignore[misc]
    assert ("another cloud controller manager leads") in format_observations(
        "controllers", make_snapshot(leases=upstream)
    )


def test_what_may_not_be_seen_is_no_other_controller():
    for blind in (
        make_snapshot(leases=NOT_ALLOWED),
        make_snapshot(everywhere=False),
        make_snapshot(pods=NOT_ALLOWED),
    ):
        assert run_check("controllers", blind).state == "unknown"


def test_a_second_installation_on_the_same_lease_is_told():
    other = msgspec.structs.replace(make_installation(), namespace="edge", release="edge")
    told = format_observations("controllers", make_snapshot(others=(other,)))
    assert "release edge in edge" in told


def test_another_approver_is_told_by_its_image_or_by_what_it_has_approved():
    other = another("ghcr.io/postfinance/kubelet-csr-approver:v1.2")
    assert "Deployment infra/other" in format_observations("approvers", make_snapshot(workloads=(other,)))

    def approved(reason: str) -> CertificateSigningRequest:
        return filed("web-1", CsrCondition(type="Approved", reason=reason))

    told = format_observations("approvers", make_snapshot(requests=(approved("rubber stamp"),)))
    assert "'rubber stamp'" in told
    for fine in ("Approved by TalosCloudControllerManager", "KubectlApprove"):
        assert run_check("approvers", make_snapshot(requests=(approved(fine),))).state == "ok"
