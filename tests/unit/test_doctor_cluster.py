"""What `talos-ccm doctor` makes of the cluster around: kubelets, Talos, NATS, clocks, others like it."""

from datetime import datetime, timedelta

import msgspec
import pytest

from cli.doctor.checks.others import allocates
from cli.doctor.installation import Installation
from cli.doctor.objects import (
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
from cli.doctor.seen import Absent, NotSeen
from cli.doctor.talos_seen import Asked, decoded
from cli.explain.filed import Condition, Filed, Status
from cli.inside.seen import CertificateSeen, Unknown
from libs.common.node import PROVIDED_NODE_IP_ANNOTATION, Node, ObjectMeta
from libs.common.signing_request import KUBELET_SERVING, NODE_USER_PREFIX, NODES_GROUP, SigningRequestSpec
from libs.testbed.pki import Authority
from tests.builders import NOW, a_node
from tests.doctor_cases import (
    PREFIX,
    SECOND,
    a_flow,
    a_lease,
    a_manager,
    a_moment,
    a_talos,
    an_installation,
    judged,
    said,
    seen,
)

NOT_ALLOWED = NotSeen(why="it takes the right to list nodes", right="list nodes")
FOREIGN_OWNERSHIP = "ownership:\n  providerIDSchemes: [talos]\n"


def without_annotation(node: Node) -> Node:
    annotations = {k: v for k, v in node.annotations.items() if k != PROVIDED_NODE_IP_ANNOTATION}
    return msgspec.structs.replace(
        node, metadata=msgspec.structs.replace(node.metadata, annotations=annotations)
    )


# ---- kubelets


def test_a_kubelet_that_is_not_external_is_told_with_the_patch_and_that_the_node_has_to_join_again():
    told = said("kubelets", seen(nodes=(without_annotation(a_node("db-1", taints=())), a_node("web-1"))))
    assert "db-1: no taint" in told
    assert "without --cloud-provider=external" in told
    assert "kubectl delete node db-1" in told
    assert "web-1" not in told


def test_an_external_kubelet_that_does_not_say_where_it_is_is_told_apart():
    waiting = without_annotation(a_node("db-1"))
    named = without_annotation(a_node("db-2", taints=(), provider_id="talos://metal/db-2"))
    told = said("kubelets", seen(nodes=(waiting, named)))
    assert "db-1, db-2: no annotation" in told
    assert "--node-ip" in told
    assert "--cloud-provider=external, and nobody" not in told


def test_an_annotation_that_is_no_address_is_told():
    told = said(
        "kubelets", seen(nodes=(a_node("web-1", annotations={PROVIDED_NODE_IP_ANNOTATION: "localhost"}),))
    )
    assert "web-1: annotation" in told
    assert "is not an IP address" in told


def test_nodes_of_others_are_left_alone_where_ownership_says_so():
    others = without_annotation(a_node("aws-1", taints=(), provider_id="aws:///i-1"))
    assert judged("kubelets", seen(nodes=(others,))).state == "wrong"
    assert judged("kubelets", seen(nodes=(others,), config=FOREIGN_OWNERSHIP)).state == "ok"


def test_nodes_that_may_not_be_listed_are_no_wrong_ones():
    assert "kubectl auth can-i list nodes" in said("kubelets", seen(nodes=NOT_ALLOWED), "unknown")


# ---- serving certificates


def filed(node: str, *conditions: Condition) -> Filed:
    spec = SigningRequestSpec(
        signer_name=KUBELET_SERVING,
        username=f"{NODE_USER_PREFIX}{node}",
        groups=(NODES_GROUP,),
        usages=(),
        request=b"",
    )
    meta = ObjectMeta(name=f"csr-{node}", creation_timestamp=NOW)
    return Filed(metadata=meta, spec=spec, status=Status(conditions=conditions))


def test_a_request_shows_that_the_kubelet_asks_whatever_else_is_not_known():
    mute = {"web-1": NotSeen(why="x")}
    check = judged("serving-certificates", seen(requests=(filed("web-1"),), serving=mute))
    assert check.state == "ok"


def test_a_kubelet_that_signs_for_itself_is_told_with_the_flag():
    told = said("serving-certificates", seen(serving={"web-1": False}))
    assert "rotate-server-certificates" in told
    assert "web-1" in told


def test_a_kubelet_of_which_nothing_is_known_is_neither_right_nor_wrong():
    mute = {"web-1": NotSeen(why="it takes the right to get nodes/proxy", right="get nodes/proxy")}
    told = said("serving-certificates", seen(serving=mute), "unknown")
    assert "kubectl auth can-i get nodes/proxy" in told


def test_nobody_has_to_ask_where_nobody_approves():
    here = an_installation(without=("csr",))
    assert judged("serving-certificates", seen(here=here, serving={"web-1": False})).state == "ok"
    assert judged("approvers", seen(here=here)).state == "ok"


# ---- the Talos credential


def an_account(*roles: str, failure: str = "") -> TalosAccount:
    return TalosAccount(
        metadata=Meta(name="x"),
        spec=TalosAccountSpec(roles=roles),
        status=TalosAccountStatus(failure_reason=failure),
    )


def test_what_talos_refuses_is_told_in_its_words():
    told = said(
        "talos-credential", seen(talos_account=an_account("os:reader", failure="namespace not allowed"))
    )
    assert "namespace not allowed" in told
    assert "allowedKubernetesNamespaces name kube-system" in told


def test_a_cluster_without_the_kind_and_one_without_the_object_differ():
    told = said("talos-credential", seen(talos_account=Absent(), talos_kind=False))
    assert "kubernetesTalosAPIAccess" in told
    told = said("talos-credential", seen(talos_account=Absent()))
    assert told.startswith("there is no ServiceAccount.talos.dev")


@pytest.mark.parametrize("roles", [("os:admin",), ("os:reader", "os:operator"), ()])
def test_another_role_than_the_reader_is_wrong(roles: tuple[str, ...]):
    assert "os:reader" in said("talos-credential", seen(talos_account=an_account(*roles)))


def test_without_the_service_nobody_reaches_talos():
    assert "no Service default/talos" in said("talos-credential", seen(talos_service=False))


def test_without_talos_there_is_nothing_to_check():
    here = an_installation(without=("metadata",))
    for check in ("talos-credential", "talos"):
        assert judged(check, seen(here=here, talos_account=Absent(), talos=NotSeen(why="x"))).state == "ok"


# ---- Talos, asked in the pod


def test_a_credential_that_is_not_valid_is_told_in_metadatas_words():
    told = said("talos", seen(talos=a_talos(problem="our client certificate expired 2 h ago")))
    assert "expired 2 h ago" in told
    assert f"get serviceaccounts.talos.dev {PREFIX}-talos-secrets" in told


def test_a_role_that_does_not_suffice_is_told():
    assert "has the roles os:etcd" in said("talos", seen(talos=a_talos(roles=("os:etcd",))))


def test_endpoints_that_do_not_answer_are_told_and_machines_are_not_blamed_for_it():
    silent = (Asked(address="talos.default:50000", fault="connection refused"),)
    mute = (Asked(address="10.0.0.5", fault="no answer"),)
    told = said("talos", seen(talos=a_talos(endpoints=silent, machines=mute)))
    assert "no endpoint answers: talos.default:50000: connection refused" in told
    assert "10.0.0.5" not in told
    told = said("talos", seen(talos=a_talos(machines=mute)))
    assert "10.0.0.5: no answer" in told
    assert "talos-ccm explain node" in told


def test_what_travels_from_the_pod_is_read_and_what_does_not_is_refused():
    assert decoded(msgspec.json.encode(a_talos())) == a_talos()
    for junk in (b"", b"{}", b'{"type":"FlowSeen.v1"}', b"[" * 100_000):
        with pytest.raises(ValueError, match="inside talos"):
            decoded(junk)


# ---- clocks


@pytest.mark.parametrize(("seconds", "word"), [(7, "behind"), (-9, "ahead of")])
def test_a_clock_that_differs_from_the_api_servers_is_told(seconds: int, word: str):
    told = said("clock", seen(server_clock=a_moment(seconds * SECOND), pod_clock=a_moment(seconds * SECOND)))
    assert f"s {word} the API server's" in told
    assert "metadata's node" not in told


def test_the_clock_of_the_pods_node_is_held_against_the_api_servers_and_not_against_ours():
    told = said("clock", seen(pod_clock=a_moment(timedelta(minutes=20))))
    assert "the clock of metadata's node is 19 min ahead of the API server's" in told
    assert judged("clock", seen(pod_clock=a_moment(3 * SECOND))).state == "ok"


def test_a_slow_answer_is_no_skew():
    slow = a_moment()
    slow = msgspec.structs.replace(slow, answered=slow.asked + timedelta(minutes=1))
    assert judged("clock", seen(server_clock=slow, pod_clock=slow)).state == "ok"


def test_a_certificate_from_the_future_is_told():
    told = said("clock", seen(talos=a_talos(not_before=NOW + timedelta(minutes=3))))
    assert "which is to come" in told


# ---- NATS


def test_a_missing_stream_missing_durables_and_a_silent_leader_are_told():
    assert "there is no stream TALOSCCM" in said("nats", seen(flow=a_flow(stream=None)))
    queues = tuple(msgspec.structs.replace(q, exists=q.service != "csr") for q in a_flow().queues)
    assert "no durables csr-requests" in said("nats", seen(flow=a_flow(queues=queues)))
    assert "nobody has said that they lead" in said("nats", seen(flow=a_flow(leading=None)))
    leading = a_flow().leading
    assert leading
    old = msgspec.structs.replace(leading, published_at=NOW - timedelta(minutes=2))
    assert "it is 120 s since" in said("nats", seen(flow=a_flow(leading=old)))


def test_a_service_that_takes_no_part_is_told_and_one_that_is_not_installed_is_not():
    services = tuple(
        msgspec.structs.replace(one, here=False, why="nobody asks") if one.service == "labeler" else one
        for one in a_flow().services
    )
    told = said("nats", seen(flow=a_flow(services=services)))
    assert "labeler does not take part: nobody asks" in told
    without = an_installation(without=("labeler",))
    assert judged("nats", seen(here=without, flow=a_flow(services=services))).state == "ok"


def test_a_stream_that_fills_and_dead_letters_are_told():
    stream = a_flow().stream
    assert stream
    full = msgspec.structs.replace(stream, bytes=950)
    assert "95 % full" in said("nats", seen(flow=a_flow(stream=full)))
    assert "3 dead letters" in said("nats", seen(flow=a_flow(dead_count=3)))


def test_nats_that_cannot_be_asked_is_told_with_why():
    told = said("nats", seen(flow=Unknown(reason="no pod of watcher is ready")), "unknown")
    assert "no pod of watcher is ready" in told


def test_an_authority_that_ends_is_told_a_year_before():
    pem = Authority.make(common_name="nats")
    ends = pem.certificate.not_valid_after_utc
    text = pem.pem.decode()

    def at(moment: datetime) -> str:
        return judged("nats", seen(authority=text, at=moment)).state

    assert at(ends - timedelta(days=366)) == "ok"
    assert at(ends - timedelta(days=364)) == "wrong"
    assert "has ended" in said("nats", seen(authority=text, at=ends + SECOND))
    assert "no ConfigMap" in said("nats", seen(authority=Absent()))
    assert "holds no certificate" in said("nats", seen(authority="x"))


@pytest.mark.parametrize(("days", "state"), [(91, "ok"), (89, "wrong"), (-1, "wrong")])
def test_a_servers_certificate_that_the_keeper_should_have_renewed_is_told(days: int, state: str):
    shown = CertificateSeen(name="nats-server", expires_at=NOW + timedelta(days=days))
    other = CertificateSeen(name="nats-authority", expires_at=NOW)  # judged by its ConfigMap
    check = judged("nats", seen(flow=a_flow(certificates=(shown, other))))
    assert check.state == state
    if state == "wrong":
        assert "--container keeper" in check.findings[0].commands[0]
        own = msgspec.structs.replace(an_installation(), nats=None)
        told = said("nats", seen(here=own, flow=a_flow(certificates=(shown,)), authority=Absent()))
        assert "a server of your own" in told


def test_one_process_needs_no_nats():
    process = an_installation().processes[0]
    everything = tuple(w for p in an_installation().processes for w in p.services)
    one = msgspec.structs.replace(process, services=everything)
    here = Installation(namespace="kube-system", release=PREFIX, processes=(one,))
    assert judged("nats", seen(here=here, flow=Unknown(reason="x"), authority=Absent())).state == "ok"


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
    assert allocates(Container(name="kcm", args=flags)) is gives
    state = judged("pod-cidrs", seen(system_pods=(a_manager(*flags),))).state
    assert state == ("wrong" if gives else "ok")


def test_two_allocators_are_wrong_only_where_ipam_runs():
    manager = (a_manager("--allocate-node-cidrs=true"),)
    assert "pod-cidrs-patch.yaml" in said("pod-cidrs", seen(system_pods=manager))
    here = an_installation(without=("ipam",))
    assert judged("pod-cidrs", seen(here=here, system_pods=manager)).state == "ok"
    assert judged("pod-cidrs", seen(system_pods=())).state == "unknown"


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
    assert judged("controllers", seen(workloads=(another(image, *args),))).state == state


def test_another_one_that_is_scaled_to_nothing_or_has_nodes_of_its_own_is_not_told():
    other = another("hetznercloud/hcloud-cloud-controller-manager:v1.20", replicas=0)
    assert judged("controllers", seen(workloads=(other,))).state == "ok"
    other = another("hetznercloud/hcloud-cloud-controller-manager:v1.20")
    assert judged("controllers", seen(workloads=(other,), config=FOREIGN_OWNERSHIP)).state == "ok"


def test_who_leads_is_held_against_our_pods():
    foreign = (a_lease("somebody_1"),)
    assert "held by somebody_1, which is no pod of kube-system" in said("controllers", seen(leases=foreign))
    assert "held by nobody" in said("controllers", seen(leases=()))
    old = (a_lease(f"{PREFIX}-watcher-0_1", age=timedelta(minutes=5)),)
    assert f"the last was {PREFIX}-watcher-0_1" in said("controllers", seen(leases=old))
    upstream = (*seen().leases, a_lease("cp-1_x", "cloud-controller-manager"))  # type: ignore[misc]
    assert "another cloud controller manager leads" in said("controllers", seen(leases=upstream))


def test_what_may_not_be_seen_is_no_other_controller():
    for blind in (seen(leases=NOT_ALLOWED), seen(everywhere=False), seen(pods=NOT_ALLOWED)):
        assert judged("controllers", blind).state == "unknown"


def test_a_second_installation_on_the_same_lease_is_told():
    other = msgspec.structs.replace(an_installation(), namespace="edge", release="edge")
    told = said("controllers", seen(others=(other,)))
    assert "release edge in edge" in told


def test_another_approver_is_told_by_its_image_or_by_what_it_has_approved():
    other = another("ghcr.io/postfinance/kubelet-csr-approver:v1.2")
    assert "Deployment infra/other" in said("approvers", seen(workloads=(other,)))

    def approved(reason: str) -> Filed:
        return filed("web-1", Condition(type="Approved", reason=reason))

    told = said("approvers", seen(requests=(approved("rubber stamp"),)))
    assert "'rubber stamp'" in told
    for fine in ("Approved by TalosCloudControllerManager", "KubectlApprove"):
        assert judged("approvers", seen(requests=(approved(fine),))).state == "ok"
