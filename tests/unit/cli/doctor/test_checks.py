"""The checks of `talos-ccm doctor`: for each snapshot, the state of a check and its words."""

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Final

import msgspec
import pytest

from cli.cluster.installation import Installation
from cli.cluster.kube_events import InvolvedObject, KubeEvent
from cli.cluster.kube_objects import (
    CertificateSigningRequest,
    Condition,
    Container,
    CsrCondition,
    EnvironmentVariable,
    Meta,
    PodSpec,
    PodTemplate,
    Workload,
    WorkloadSpec,
)
from cli.cluster.pods import ContainerState, ContainerStatus, TerminatedState, WaitingState
from cli.cluster.unavailable import Unavailable
from cli.doctor.checks.competing_controllers import allocates_pod_cidrs
from cli.doctor.required_permissions import list_access_reviews
from cli.doctor.snapshot import AccessReviews, UnreadyPods
from cli.inside.flow_snapshot import CertificateSnapshot, FlowUnavailable
from cli.inside.talos_credential import ProbeResult
from libs.common.contract.instances import InstanceAnchor
from libs.common.contract.kube_service import (
    BALANCER_ANNOTATION,
    CLASS_FINALIZER,
    CLEANUP_FINALIZER,
    HAND_BACK_ANNOTATION,
)
from libs.common.contract.node import Node, NodeCondition, ObjectMeta
from libs.testbed.pki import CertificateAuthority
from services.cloud.core.balancers.balancer_record import BalancerRecord, encode_balancer_record
from tests.builders import NOW, make_kube_service, make_node
from tests.cli_snapshots import hold_request
from tests.csr_actors import make_serving_request
from tests.doctor_cases import (
    PREFIX,
    RUNNING,
    SECOND,
    format_observations,
    make_controller_manager,
    make_flow_snapshot,
    make_installation,
    make_lease,
    make_pod,
    make_probe,
    make_remote_clock,
    make_snapshot,
    make_talos_objects,
    make_workload,
    run_check,
)
from tests.instance_reports import make_recorded_node
from tests.lifecycle_actors import make_lost_node

HOUR: Final = timedelta(hours=1)
NOT_ALLOWED: Final = Unavailable(reason="403", required_permission="list things")
MUTE: Final = Unavailable(reason="no such resource")
TALOS_ONLY: Final = "ownership:\n  providerIDSchemes: [talos]\n"
TEAM_A: Final = """
ownership:
  nodeSelector:
    - matchExpressions: [{key: team, operator: In, values: [a]}]
"""
HCLOUD: Final = "hetznercloud/hcloud-cloud-controller-manager:v1.20"
OLD_IMAGE: Final = f"registry.example.com/{PREFIX}:v0.0.9"
FLOW: Final = make_flow_snapshot()
Case = tuple[str, str, dict[str, Any], tuple[str, ...]]  # check, state, changes of the snapshot, words


def deploy(name: str, container: Container, replicas: int = 1) -> Workload:
    """Return a Deployment that is not part of the installation."""
    template = PodTemplate(spec=PodSpec(containers=(container,)))
    spec = WorkloadSpec(replicas=replicas, template=template)
    return Workload(metadata=Meta(name=name, namespace="infra"), spec=spec, kind="Deployment")


def a_workload(image: str, *args: str, replicas: int = 1, **env: str) -> Workload:
    variables = tuple(EnvironmentVariable(name=name, value=value) for name, value in env.items())
    return deploy("other", Container(name="c", image=image, args=args, env=variables), replicas)


def an_account(name: str, *flags: str, controllers: str) -> Workload:
    """Return the process of a cloud account."""
    args = (f"--controllers={controllers}", f"--cloud-account=hcloud/{name}", *flags)
    image = "registry.example.com/talos-cloud-controller-manager:v0.1.0"
    command = ("python", "-m", "services.cloud")
    return deploy(name, Container(name="cloud", image=image, command=command, args=args))


def filed(approved_by: str = "") -> CertificateSigningRequest:
    """Return the request of web-1."""
    request = make_serving_request("csr-1", node="web-1")
    conditions = (CsrCondition(type="Approved", reason=approved_by),) if approved_by else ()
    return hold_request(request, *conditions)


def unready(service: str = "labeler", **status: Any) -> dict[str, Any]:
    """Return an installation in which one service has an unready pod."""
    workloads: dict[str, Any] = {service: {"ready": 0}}
    here = make_installation(**workloads)
    return {"here": here, "pods": (make_pod(service, ready=False, **status),)}


def waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    state = ContainerState(waiting=WaitingState(reason=reason, message=message))
    return unready(container_statuses=(ContainerStatus(name="labeler", state=state, **more),))


def all_with(image: str) -> Installation:
    workloads: dict[str, Any] = {service: {"image": image} for service in RUNNING}
    return make_installation(**workloads)


def reviewed(
    *,
    refused: tuple[str, str] = ("", ""),
    allowed: tuple[str, str] = ("", ""),
    **there: bool,
) -> AccessReviews:
    """Return the reviews; `refused` and `allowed` are a service and a resource with another answer."""
    found = list_access_reviews(make_installation())
    root = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    return AccessReviews(
        results=tuple(
            msgspec.structs.replace(
                q,
                is_allowed=(q.is_required and (q.service, q.resource) != refused)
                or (q.service, q.resource) == allowed,
            )
            for q in found
        ),
        existing={f"{root}/{plural}/{PREFIX}-csr": is_there for plural, is_there in there.items()},
    )


def flow(**changed: Any) -> dict[str, Any]:
    return {"flow": make_flow_snapshot(**changed)}


def one_process() -> Installation:
    processes = make_installation().processes
    services = tuple(spec for process in processes for spec in process.services)
    alone = msgspec.structs.replace(processes[0], services=services)
    return Installation(namespace="kube-system", release=PREFIX, processes=(alone,))


def services_cases() -> Iterator[Case]:
    pulls = waiting("ImagePullBackOff", "not found")
    yield "services", "wrong", pulls, ("ImagePullBackOff: not found", "image.repository")
    ended = ContainerState(terminated=TerminatedState(reason="Error", exit_code=2))
    crashes = waiting("CrashLoopBackOff", restart_count=7, last_state=ended)
    crashes["unready"] = UnreadyPods(last_lines={f"{PREFIX}-labeler-0": "no such flag"})
    logs = f"kubectl --namespace kube-system logs {PREFIX}-labeler-0 --container labeler --previous"
    yield "services", "wrong", crashes, ("7 times with Error 2; last log line: no such flag", logs)
    message = "0/3 nodes are available"
    unscheduled = Condition(type="PodScheduled", status="False", message=message)
    yield "services", "wrong", unready(phase="Pending", conditions=(unscheduled,)), (message,)
    running = unready(container_statuses=(ContainerStatus(name="labeler"),))
    yield "services", "wrong", running, ("its container labeler is not ready",)
    event = KubeEvent(
        metadata=ObjectMeta(name="e"),
        type="Warning",
        reason="FailedMount",
        message='secret "x-talos-secrets" not found',
        involved_object=InvolvedObject(name=f"{PREFIX}-metadata-0"),
    )
    mounts = {**unready("metadata", phase="Pending"), "unready": UnreadyPods(events=(event,))}
    yield "services", "wrong", mounts, ("x-talos-secrets", "see the check talos-credential")
    yield "services", "wrong", unready() | {"pods": ()}, ("the other pods were not created",)
    rejected = Condition(type="ReplicaFailure", status="True", message="violates PodSecurity")
    here = make_installation(labeler={"ready": 0, "conditions": (rejected,)})
    yield "services", "wrong", {"here": here, "pods": ()}, ("violates PodSecurity",)
    yield "services", "wrong", unready() | {"pods": NOT_ALLOWED}, ("kubectl auth can-i list things",)
    without = make_installation(without=("watcher",))
    yield "services", "wrong", {"here": without}, ("watcher is not installed",)


def versions_cases() -> Iterator[Case]:
    here = make_installation(csr={"image": OLD_IMAGE})
    yield "versions", "wrong", {"here": here}, (f"v0.0.9 ({PREFIX}-csr)",)
    here = make_installation(csr={"version": "v0.0.9"})
    yield "versions", "wrong", {"here": here}, ("different chart versions",)
    other = "r.example.com:5000/ccm:v0.2.0"
    yield "versions", "wrong", {"here": all_with(other)}, (f"chart version v0.1.0 runs image {other}",)
    for own in ("r.example.com:5000/ccm:edge", "r.example.com:5000/ccm@sha256:00"):
        yield "versions", "ok", {"here": all_with(own)}, ()
    words = ("this talos-ccm has version 0.3.0, but v0.1.0 is installed",)
    yield "versions", "wrong", {"version": "0.3.0"}, words


def pod_security_cases() -> Iterator[Case]:
    enforce = "pod-security.kubernetes.io/enforce"
    for namespace, level, ready, state in (
        ("kube-system", "", 0, "ok"),
        ("talos-system", "", 1, "ok"),
        ("talos-system", "", 0, "wrong"),
        ("talos-system", "baseline", 1, "wrong"),
        ("talos-system", "privileged", 0, "ok"),
    ):
        host = make_installation(watcher={"host_network": True, "ready": ready})
        here = msgspec.structs.replace(host, namespace=namespace)
        labels = {enforce: level} if level else {}
        words = (f"{enforce}=privileged",) if state == "wrong" else ()
        yield "pod-security", state, {"here": here, "namespace_labels": labels}, words


def rights_cases() -> Iterator[Case]:
    refused = {"refused": ("csr", "events")}
    for there, words in (
        ((False, True), (f"Role default/{PREFIX}-csr does not exist", "kubectl apply --server-side")),
        (
            (True, False),
            (f"kubectl --namespace default create rolebinding {PREFIX}-csr --role={PREFIX}-csr",),
        ),
        ((True, True), ("differs from the chart",)),
    ):
        reviews = reviewed(**refused, roles=there[0], rolebindings=there[1])  # type: ignore[arg-type]
        yield "rights", "wrong", {"reviews": reviews}, words
    excess = reviewed(allowed=("metadata", "serviceaccounts/token"))
    words = (f"{PREFIX}-metadata may create serviceaccounts/token in kube-system",)
    yield "rights", "wrong", {"reviews": excess}, words
    yield "rights", "unknown", {"reviews": NOT_ALLOWED}, ()


def config_cases() -> Iterator[Case]:
    broken = {"config": "transformations:\n  - labelz: {a: b}\n"}
    command = r"jsonpath='{.data.ccm-config\.yaml}' | talos-ccm config check -"
    yield "config", "wrong", broken, ("line 2", command)
    yield "config", "wrong", {"config": None}, ("has no ccm-config.yaml",)
    yield "config", "unknown", {"config": NOT_ALLOWED}, ("auth can-i",)


def kubelet_cases() -> Iterator[Case]:
    bare = {"nodes": (make_node("db-1", ip="", taints=()), make_node("web-1"))}
    words = ("db-1: no taint", "without --cloud-provider=external", "the labeler writes the Node")
    yield "kubelets", "wrong", bare, words
    silent = make_node("db-1", ip=""), make_node("db-2", ip="", taints=(), provider_id="talos://metal/db-2")
    yield "kubelets", "wrong", {"nodes": silent}, ("db-1, db-2: no annotation", "--node-ip")
    odd = {"nodes": (make_node(ip="localhost"),)}
    yield "kubelets", "wrong", odd, ("web-1: annotation", "is not an IP address")
    foreign = {"nodes": (make_node("aws-1", ip="", taints=(), provider_id="aws:///i-1"),)}
    yield "kubelets", "wrong", foreign, ()
    yield "kubelets", "ok", foreign | {"config": TALOS_ONLY}, ()
    yield "kubelets", "unknown", {"nodes": NOT_ALLOWED}, ("kubectl auth can-i list things",)
    check = "serving-certificates"
    yield check, "ok", {"requests": (filed(),), "serving": {"web-1": MUTE}}, ()
    yield check, "wrong", {"serving": {"web-1": False}}, ("rotate-server-certificates", "web-1")
    yield check, "unknown", {"serving": {"web-1": NOT_ALLOWED}}, ("kubectl auth can-i list things",)
    no_csr = {"here": make_installation(without=("csr",)), "serving": {"web-1": False}}
    yield check, "ok", no_csr, ()
    yield "approvers", "ok", no_csr, ()
    for team, state in (("a", "unknown"), ("b", "ok")):  # team b has another controller
        nodes = (make_node("web-1", labels={"team": team}),)
        yield check, state, {"nodes": nodes, "serving": {"web-1": MUTE}, "config": TEAM_A}, ()


def talos_cases() -> Iterator[Case]:
    check = "talos-credential"
    rejected = make_talos_objects("os:reader", failure="namespace not allowed")
    access = "machine.features.kubernetesTalosAPIAccess"
    words = ("namespace not allowed", f"add kube-system to {access}.allowedKubernetesNamespaces")
    yield check, "wrong", {"talos_objects": rejected}, words
    no_kind = make_talos_objects(account=None, has_kind=False)
    yield check, "wrong", {"talos_objects": no_kind}, ("kubernetesTalosAPIAccess",)
    absent = make_talos_objects(account=None)
    yield check, "wrong", {"talos_objects": absent}, ("ServiceAccount.talos.dev kube-system/",)
    for roles in (("os:admin",), ("os:reader", "os:operator"), ()):
        yield check, "wrong", {"talos_objects": make_talos_objects(*roles)}, ("os:reader",)
    no_service = make_talos_objects("os:reader", has_service=False)
    yield check, "wrong", {"talos_objects": no_service}, ("Service default/talos does not exist",)
    for name in (check, "talos"):
        yield name, "ok", {"here": make_installation(without=("metadata",)), "talos": MUTE}, ()
    expired = {"talos": make_probe(problem="our client certificate expired 2 h ago")}
    words = ("expired 2 h ago", f"get serviceaccounts.talos.dev {PREFIX}-talos-secrets")
    yield "talos", "wrong", expired, words
    yield "talos", "wrong", {"talos": make_probe(roles=("os:etcd",))}, ("has the roles os:etcd",)
    silent = (ProbeResult(address="talos.default:50000", fault="connection refused"),)
    mute = (ProbeResult(address="10.0.0.5", fault="no answer"),)
    refused = "no endpoint answers: talos.default:50000: connection refused"
    yield "talos", "wrong", {"talos": make_probe(endpoints=silent)}, (refused,)
    words = ("10.0.0.5: no answer", "talos-ccm explain node")
    yield "talos", "wrong", {"talos": make_probe(machines=mute)}, words


def clock_cases() -> Iterator[Case]:
    for seconds, word in ((7, "behind"), (-9, "ahead of")):
        off = make_remote_clock(seconds * SECOND)
        words = (f"s {word} the API server's",)
        yield "clock", "wrong", {"clock": off, "talos": make_probe(clock=off)}, words
    ahead = make_probe(clock=make_remote_clock(timedelta(minutes=20)))
    words = ("the clock of metadata's node is 19 min ahead of the API server's",)
    yield "clock", "wrong", {"talos": ahead}, words
    near = make_probe(clock=make_remote_clock(3 * SECOND))
    yield "clock", "ok", {"talos": near}, ("API server, metadata's node and this computer",)
    slow = make_remote_clock()
    slow = msgspec.structs.replace(slow, responded_at=slow.requested_at + timedelta(minutes=1))
    yield "clock", "ok", {"clock": slow, "talos": make_probe(clock=slow)}, ()
    early = make_probe(not_before=NOW + timedelta(minutes=3))
    yield "clock", "wrong", {"talos": early}, ("valid only from",)


def nats_cases() -> Iterator[Case]:
    yield "nats", "wrong", flow(stream=None), ("stream TALOSCCM does not exist",)
    queues = tuple(msgspec.structs.replace(q, exists=q.service != "csr") for q in FLOW.queues)
    yield "nats", "wrong", flow(queues=queues), ("missing durable consumers: csr-requests",)
    yield "nats", "wrong", flow(leading=None), ("no leader heartbeat: all other services pause",)
    assert FLOW.stream
    queues = tuple(
        msgspec.structs.replace(each, waiting=0) if each.service == "labeler" else each
        for each in FLOW.queues
    )
    yield "nats", "wrong", flow(queues=queues), ("labeler is not active: no client",)
    yield "nats", "ok", flow(queues=queues) | {"here": make_installation(without=("labeler",))}, ()
    full = msgspec.structs.replace(FLOW.stream, bytes=950)
    yield "nats", "wrong", flow(stream=full), ("95 % full",)
    yield "nats", "wrong", flow(dead_count=3), ("3 dead letters",)
    silent = {"flow": FlowUnavailable(reason="no pod of watcher is ready")}
    yield "nats", "unknown", silent, ("no pod of watcher is ready",)
    yield "nats", "ok", silent | {"here": one_process(), "authority": None}, ()


def certificate_cases() -> Iterator[Case]:
    authority = CertificateAuthority.make(common_name="nats")
    ends, pem = authority.certificate.not_valid_after_utc, authority.pem.decode()
    for left, state in ((timedelta(days=366), "ok"), (timedelta(days=364), "wrong"), (-SECOND, "wrong")):
        words = ("expired",) if left < timedelta() else ()
        yield "nats", state, {"authority": pem, "at": ends - left}, words
    yield "nats", "wrong", {"authority": None}, ("with ca.crt does not exist",)
    yield "nats", "wrong", {"authority": "x"}, ("contains no certificate",)
    other = CertificateSnapshot(name="nats-authority", expires_at=NOW)  # judged by its ConfigMap
    for days, state in ((91, "ok"), (89, "wrong"), (-1, "wrong")):
        shown = CertificateSnapshot(name="nats-server", expires_at=NOW + timedelta(days=days))
        words = ("--container keeper",) if state == "wrong" else ()
        yield "nats", state, flow(certificates=(shown, other)), words
    own = msgspec.structs.replace(make_installation(), nats=None)
    yield "nats", "wrong", flow(certificates=(shown,)) | {"here": own}, ("not part of the chart",)


def balancer_cases() -> Iterator[Case]:
    """Native controllers leave Services with a class alone, so only those without one have two owners."""
    account = partial(an_account, controllers="service-lb-controller")
    default = account("prod", "--load-balancer-default-account=prod")
    classed = account("prod", "--load-balancer-class=prod=example.com/lb")
    native, owned = a_workload(HCLOUD), "without a class"
    switched_off = a_workload(HCLOUD, HCLOUD_LOAD_BALANCERS_ENABLED="false")
    for workloads, state, words in (
        ((default, *make_installation().workloads), "ok", ()),
        ((native,), "ok", ()),
        ((account("prod"), native), "ok", ()),
        ((classed, native), "ok", ()),
        ((default, native), "wrong", ("Deployment infra/other and account prod", owned)),
        ((default, a_workload(HCLOUD, "--controllers=*,-service-lb-controller")), "ok", ()),
        ((default, a_workload(HCLOUD, "--controllers=cloud-node")), "ok", ()),
        ((default, switched_off), "ok", ()),
        ((default, a_workload(HCLOUD, replicas=0)), "ok", ()),
        ((default, account("dev", "--load-balancer-default-account=dev")), "wrong", (owned,)),
        ((classed, account("dev", "--load-balancer-class=dev=example.com/lb")), "wrong", ("of class",)),
    ):
        yield "load-balancers", state, {"workloads": workloads}, words
    class_lost = make_kube_service(type="ClusterIP", finalizers=(CLASS_FINALIZER,))
    native_lost = make_kube_service(finalizers=(CLEANUP_FINALIZER,), deleted_at=NOW)
    record = encode_balancer_record(BalancerRecord(account="prod", id="7"))
    told = ("Service shop/web has the finalizer", "talos-ccm/service-uid=service-uid-1")
    for having, service, state in (
        (classed, class_lost, "wrong"),
        (classed, make_kube_service(), "ok"),
        (classed, native_lost, "ok"),
        (default, native_lost, "wrong"),
        (default, make_kube_service(finalizers=(CLEANUP_FINALIZER,)), "ok"),
        (
            default,
            make_kube_service(finalizers=(CLASS_FINALIZER,), annotations={BALANCER_ANNOTATION: record}),
            "ok",
        ),
        (
            default,
            make_kube_service(
                finalizers=(CLEANUP_FINALIZER,), deleted_at=NOW, annotations={HAND_BACK_ANNOTATION: "7"}
            ),
            "ok",
        ),
    ):
        words = told if state == "wrong" else ()
        yield "load-balancers", state, {"workloads": (having,), "services": (service,)}, words
    yield "load-balancers", "unknown", {"workloads": (default,), "services": NOT_ALLOWED}, ("list things",)


def route_cases() -> Iterator[Case]:
    """Kubernetes' own route controller runs only with a cluster CIDR."""
    account, native = partial(an_account, controllers="node-route-controller"), partial(a_workload, HCLOUD)

    def node(message: str, provider_id: str = "hcloud://1") -> Node:
        condition = NodeCondition(type="NetworkUnavailable", status="True", message=message)
        return make_node("web-1", provider_id=provider_id, conditions=(condition,))

    ours, cidr = account("prod", "--route-network=prod=4711"), "--cluster-cidr=10.244.0.0/16"
    own = make_workload("labeler", args=(cidr, "--controllers=*,node-route-controller"))
    for workloads, state, words in (
        ((account("prod"), native(cidr)), "ok", ("no account makes routes",)),
        ((ours, own), "ok", ("network 4711 of account prod",)),
        ((ours, native()), "ok", ()),
        ((ours, native(cidr)), "wrong", ("Deployment infra/other and account prod",)),
        ((ours, native(cidr, HCLOUD_NETWORK_ROUTES_ENABLED="false")), "ok", ()),
        ((ours, native(cidr, "--configure-cloud-routes=false")), "ok", ()),
        ((ours, native(cidr, "--controllers=*,-route")), "ok", ()),
        ((ours, native(cidr, "--controllers=cloud-node")), "ok", ()),
        ((ours, account("dev", "--route-network=dev=4712")), "ok", ()),
        ((ours, account("dev", "--route-network=dev=4711")), "wrong", ("the routes of network 4711",)),
        ((ours, account("dev", "--route-network=dev=4711", "--route-dry-run")), "ok", ()),
        ((account("dev", "--route-network=dev"),), "ok", ("network (router-id of dev) of account dev",)),
    ):
        yield "routes", state, {"workloads": workloads}, words
    anchored = account("prod/network/7", "--route-network=prod=4711")
    shared = ("dev (network 4712)", "prod (network 4711)", "NetworkUnavailable of the same Nodes")
    for other, state in (("dev/network/7", "wrong"), ("dev/network/8", "ok"), ("dev", "ok")):
        second = account(other, "--route-network=dev=4712")
        yield "routes", state, {"workloads": (anchored, second)}, shared if state == "wrong" else ()
    by_file = account("dev/network/7", "--route-network=dev")  # only the credential file has the router
    for others in ((anchored, by_file), (account("prod/network/7", "--route-network=prod"), by_file)):
        yield "routes", "ok", {"workloads": others}, ("network (router-id of dev) of account dev",)
    twice = (by_file, account("dev", "--route-network=dev"))
    yield "routes", "ok", {"workloads": twice}, ("network (router-id of dev) of account dev",)
    record = BalancerRecord(account="dev", anchor=InstanceAnchor(kind="network", id="7"), id="1")
    recorded = make_kube_service(annotations={BALANCER_ANNOTATION: encode_balancer_record(record)})
    second = account("dev", "--route-network=dev=4712")
    yield "routes", "wrong", {"workloads": (anchored, second), "services": (recorded,)}, shared
    for found, state in (
        (node("RouteController created a route"), "wrong"),
        (node("RouteController created a route", "aws:///z/i-1"), "ok"),
        (node("Network 4711 routes 10.244.1.0/24 to this Node"), "ok"),
    ):
        words = ("written NetworkUnavailable of web-1",) if state == "wrong" else ()
        yield "routes", state, {"workloads": (ours,), "nodes": (found,)}, words
    yield "routes", "unknown", {"workloads": (ours,), "nodes": MUTE}, ("NetworkUnavailable of Nodes is",)


def controller_cases() -> Iterator[Case]:
    check = "controllers"
    for image, args, state in (
        ("ghcr.io/siderolabs/talos-cloud-controller-manager:v1.12.0", (), "wrong"),
        (HCLOUD, (), "wrong"),
        (HCLOUD, ("--controllers=*,-cloud-node",), "ok"),
        ("registry.k8s.io/kube-controller-manager:v1.36.0", (), "ok"),
        ("quay.io/cilium/operator:v1.17", (), "ok"),
        ("ghcr.io/sergelogvinov/proxmox-ccm:v1", (), "wrong"),
    ):
        yield check, state, {"workloads": (a_workload(image, *args),)}, ()
    account = an_account("prod", controllers="cloud-node,service-lb-controller")
    yield check, "ok", {"workloads": (account,)}, ()
    yield check, "ok", {"workloads": (a_workload(HCLOUD, replicas=0),)}, ()
    yield check, "ok", {"workloads": (a_workload(HCLOUD),), "config": TALOS_ONLY}, ()
    stranger = {"lease": make_lease("somebody_1")}
    yield check, "wrong", stranger, ("held by somebody_1, which is no pod of this installation",)
    yield check, "wrong", {"lease": make_lease("")}, ("has no holder",)
    long = f"production-ccm-{PREFIX}-watcher-6d8f9c7b-abcde"  # no host name is so long, or ends with "-"
    pod = msgspec.structs.replace(make_pod("watcher"), metadata=ObjectMeta(name=long))
    yield check, "ok", {"pods": (pod,), "lease": make_lease(f"{long[:63].rstrip('-')}_1")}, ()
    ours, gone = f"{PREFIX}-watcher-0_1", f"{PREFIX}-watcher-old_a1"
    old = {"lease": make_lease(ours, age=timedelta(minutes=5))}
    yield check, "wrong", old, (f"last holder: {ours}",)
    # The Lease of a watcher that has just died is not held by another controller.
    died = {"lease": make_lease(gone, age=30 * SECOND)}
    words = (f"{gone}, the last holder of Lease kube-system/cloud-controller-manager-talos, is gone",)
    yield check, "unknown", died, words
    upstream = {"upstream_leases": (make_lease("cp-1_x", "kube-system/cloud-controller-manager"),)}
    command = "kubectl --namespace kube-system get lease cloud-controller-manager --output yaml"
    yield check, "wrong", upstream, ("another cloud controller manager leads", command)
    for unseen in (
        {"lease": NOT_ALLOWED},
        {"upstream_leases": NOT_ALLOWED},
        {"is_cluster_wide": False},
        {"pods": NOT_ALLOWED},
    ):
        yield check, "unknown", unseen, ()
    second = msgspec.structs.replace(make_installation(), namespace="edge", release="edge")
    yield check, "wrong", {"others": (second,)}, ("release edge in edge",)


def approver_cases() -> Iterator[Case]:
    beside = {"workloads": (a_workload("ghcr.io/postfinance/kubelet-csr-approver:v1.2"),)}
    yield "approvers", "wrong", beside, ("Deployment infra/other",)
    yield "approvers", "ok", beside | {"config": TEAM_A}, ()
    yield "approvers", "wrong", {"requests": (filed("rubber stamp"),)}, ("'rubber stamp'",)
    for fine in ("Approved by TalosCloudControllerManager", "KubectlApprove"):
        yield "approvers", "ok", {"requests": (filed(fine),)}, ()
    for team, state in (("a", "wrong"), ("b", "ok")):  # team b has another controller
        nodes = (make_node("web-1", labels={"team": team}),)
        changed = {"nodes": nodes, "requests": (filed("their own"),), "config": TEAM_A}
        yield "approvers", state, changed, ()


def allocator_cases() -> Iterator[Case]:
    manager = {"system_pods": (make_controller_manager("--allocate-node-cidrs=true"),)}
    yield "pod-cidrs", "wrong", manager, ("pod-cidrs-patch.yaml",)
    yield "pod-cidrs", "ok", manager | {"here": make_installation(without=("ipam",))}, ()
    yield "pod-cidrs", "unknown", {"system_pods": ()}, ()


def cloud_cases() -> Iterator[Case]:
    alive = make_recorded_node("web-1")
    by_token = InstanceAnchor(kind="credential", id="0123456789abcdef")
    alone = make_recorded_node("web-1", record={"anchor": by_token})
    never_seen = make_lost_node("web-2", provider_id="hcloud://1002")
    elsewhere = make_lost_node("db-1", provider_id="talos://metal/10.0.0.7")
    yield "clouds", "ok", {"nodes": (make_node("web-1"),)}, ("no cloud account has seen",)
    yield "clouds", "ok", {"nodes": (alive, elsewhere)}, ("account prod has seen the instances of 1 Node",)
    yield "clouds", "ok", {"nodes": (alone,)}, ("its last Node stays",)
    yield "clouds", "wrong", {"nodes": (alive, never_seen)}, ("web-2: silent", "kubectl delete node web-2")
    joining = make_node(
        "web-2", provider_id="hcloud://1002", conditions=(NodeCondition(type="Ready", status="False"),)
    )
    yield "clouds", "ok", {"nodes": (alive, joining)}, ()
    yield "clouds", "unknown", {"nodes": MUTE}, ("Nodes are unknown",)


CASES: Final = [
    case
    for cases in (
        services_cases, versions_cases, pod_security_cases, rights_cases, config_cases, kubelet_cases,
        talos_cases, clock_cases, nats_cases, certificate_cases, controller_cases, approver_cases,
        allocator_cases, balancer_cases, route_cases, cloud_cases,
    )
    for case in cases()
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "state", "changes", "words"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES]
)
def test_each_snapshot_has_its_finding(
    check: str, state: str, changes: dict[str, Any], words: tuple[str, ...]
):
    told = format_observations(check, make_snapshot(**changes), state)
    for each in words:
        assert each in told


def test_a_finding_names_only_what_is_wrong():
    nodes = (make_node("db-1", ip="", taints=()), make_node("web-1"))
    assert "web-1" not in format_observations("kubelets", make_snapshot(nodes=nodes))
    [finding] = run_check("kubelets", make_snapshot(nodes=nodes)).findings
    assert not any("delete" in command for command in finding.commands), "the labeler writes it as it is"
    waiting_for_an_address = make_snapshot(nodes=(make_node("db-1", ip=""),))
    assert "so no controller" not in format_observations("kubelets", waiting_for_an_address)
    silent = (ProbeResult(address="talos.default:50000", fault="connection refused"),)
    mute = (ProbeResult(address="10.0.0.5", fault="no answer"),)
    talos = make_probe(endpoints=silent, machines=mute)
    assert "10.0.0.5" not in format_observations("talos", make_snapshot(talos=talos))


def test_the_leader_is_judged_by_the_api_servers_clock():
    ours = f"{PREFIX}-watcher-0_b0c1"
    late = make_snapshot(lease=make_lease(ours, age=HOUR), at=NOW - HOUR)
    assert run_check("controllers", late).state == "ok"
    dead = make_snapshot(lease=make_lease(ours), at=NOW + HOUR)
    assert "no watcher leads" in format_observations("controllers", dead)


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
