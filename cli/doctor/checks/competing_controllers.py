"""Other controllers that do the same work: pod CIDR allocators, cloud controllers, CSR approvers. Pure."""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from cli.cluster.cloud_accounts import AccountProcess, list_accounts
from cli.cluster.kube_objects import Container, Workload
from cli.cluster.pods import Pod
from cli.cluster.unavailable import Unavailable, list_known
from cli.doctor.findings import APPROVAL_OFF, Check, Finding
from cli.doctor.snapshot import InstallationSnapshot
from cli.lines import format_names
from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.ownership import why_not_owned
from libs.common.contract.controllers import CLOUD_NODE, CSR_APPROVAL, is_controller_selected
from libs.common.contract.kube_service import (
    CLASS_FINALIZER,
    CLEANUP_FINALIZER,
    HAND_BACK_ANNOTATION,
    KubeService,
)
from libs.common.contract.signing_request import APPROVED_REASON
from services.cloud.core.balancers.balancer_record import read_balancer_record

_REFERENCE: Final = re.compile(r"siderolabs/talos-cloud-controller-manager([:@]|$)")
_CLOUD: Final = re.compile(
    r"cloud-controller-manager|cloud-node-manager|cloud-provider-(?:aws|azure|gcp|kubevirt|openstack|vsphere)"
    r"|cpi-vsphere|\b\w+-ccm\b"
)
_APPROVERS: Final = re.compile(
    r"kubelet-csr-approver|kubelet-serving-cert-approver|kubelet-rubber-stamp|csr-approver|machine-approver"
    r"|cluster-machine-approver|approve-csr"
)
_BY_HAND: Final = ("KubectlApprove",)
_MANAGER: Final = "kube-controller-manager"
_BALANCERS_ENABLED: Final = "HCLOUD_LOAD_BALANCERS_ENABLED"  # in the environment of hcloud-ccm
_WITHOUT_CLASS: Final = "without a class"
_SLACK: Final = timedelta(seconds=45)
_HOST_LENGTH: Final = 63  # of a host name
_POD_CIDRS: Final = (
    "talosctl --nodes CONTROL_PLANES patch machineconfig --patch @deploy/talos/pod-cidrs-patch.yaml"
)


def check_pod_cidr_allocators(seen: InstallationSnapshot) -> Check:
    """Check that only one controller allocates pod CIDRs; two would allocate different ones."""
    if not seen.installation.runs_service("ipam"):
        return "ipam is not installed: another controller allocates pod CIDRs, as intended"
    if isinstance(seen.system_pods, Unavailable):
        yield Finding.unavailable("the flags of kube-controller-manager are unknown", seen.system_pods)
        return ""
    containers = ((pod.name, each) for pod in seen.system_pods for each in pod.spec.containers)
    managers = [(name, each) for name, each in containers if _is_controller_manager(each)]
    if not managers:
        yield Finding.unknown(
            "no pod in kube-system runs kube-controller-manager, so it is unknown whether it allocates pod "
            "CIDRs",
            "check that kube-controller-manager has -node-ipam-controller in its --controllers",
        )
    allocating = [name for name, each in managers if allocates_pod_cidrs(each)]
    if allocating:
        yield Finding.wrong(
            f"both ipam and kube-controller-manager allocate pod CIDRs: {format_names(allocating)} "
            "(--allocate-node-cidrs without --controllers=*,-node-ipam-controller)",
            "disable node-ipam-controller (from Talos 1.14 on, with its own config document: "
            "pod-cidrs-patch-1.14.yaml):",
            _POD_CIDRS,
        )
    return f"ipam allocates pod CIDRs, and {format_names(name for name, _ in managers)} does not"


def _is_controller_manager(container: Container) -> bool:
    return any(word.rpartition("/")[2] == _MANAGER for word in container.command[:1]) or (
        not container.command and container.image.partition(":")[0].rpartition("/")[2] == _MANAGER
    )


def allocates_pod_cidrs(container: Container) -> bool:
    """Whether kube-controller-manager allocates pod CIDRs; a name, or "-name", takes precedence over "*"."""
    if not container.is_switched_on("allocate-node-cidrs"):
        return False
    for name in ("node-ipam-controller", "nodeipam"):
        if name in container.controllers:
            return True
        if f"-{name}" in container.controllers:
            return False
    return "*" in container.controllers


def check_cloud_controllers(seen: InstallationSnapshot) -> Check:
    """Check that no other cloud controller removes the taint, labels Nodes or deletes them."""
    found = [*_check_lease_holder(seen), *_find_other_managers(seen)]
    yield from found
    if found:
        return ""
    leases = next((one for one in (seen.lease, seen.upstream_leases) if isinstance(one, Unavailable)), None)
    if leases:
        yield Finding.unavailable("the leader is unknown", leases)
    yield from report_unknown_workloads(seen)
    namespace, name = seen.installation.lease
    return (
        f"no other cloud controller manager; the holder of Lease {namespace}/{name} is a pod of this "
        "installation"
    )


def check_load_balancers(seen: InstallationSnapshot) -> Check:
    """Check that only one controller has the Services of a class, and those without one."""
    owners: dict[str, list[AccountProcess]] = {}  # by the Services that they have, in words
    for each in list_accounts(seen.workloads):
        if each.is_switched_on and each.account.load_balancer_class:
            owners.setdefault(f"of class {each.account.load_balancer_class}", []).append(each)
        if each.is_switched_on and each.account.is_default:
            owners.setdefault(_WITHOUT_CLASS, []).append(each)
    if not owners:
        return "no account makes load balancers; another controller may"
    for services, having in owners.items():
        places = [f"{each.account.name} in {each.place}" for each in having]
        yield from report_several_accounts(f"the Services {services}", places, "loadBalancers")
    accounts = [each for having in owners.values() for each in having]
    defaults, ours = owners.get(_WITHOUT_CLASS, []), list_own_workloads(seen)
    for workload in seen.workloads if defaults else ():
        is_running = str(workload) not in ours and workload.desired_pods
        if is_running and any(map(_makes_load_balancers, workload.pod.containers)):
            yield Finding.wrong(
                f"{workload} and account {defaults[0].account.name} both make load balancers of Services "
                "without a class",
                "stop its service controller (--controllers=*,-service-lb-controller; at Hetzner "
                "HCLOUD_LOAD_BALANCERS_ENABLED=false), or use loadBalancers.class instead of "
                "loadBalancers.default",
            )
    yield from _find_lost_finalizers(seen, has_default=bool(defaults))
    yield from report_unknown_workloads(seen)
    names = format_names({each.account.name for each in accounts})
    return f"no other controller found that makes load balancers of the Services of {names}"


def _find_lost_finalizers(seen: InstallationSnapshot, *, has_default: bool) -> Iterator[Finding]:
    if isinstance(seen.services, Unavailable):
        yield Finding.unavailable("finalizers without a record are unknown", seen.services)
    for service in list_known(seen.services):
        finalizer = _find_lost_finalizer(service, seen.at, has_default=has_default)
        if finalizer:
            yield Finding.wrong(
                f"Service {service.metadata.namespace}/{service.name} has the finalizer {finalizer}, and no "
                "record of a load balancer",
                f"look in all accounts for a load balancer with the tag talos-ccm/service-uid={service.uid}, "
                "and delete it; then remove the finalizer:",
                f"kubectl --namespace {service.metadata.namespace} edit service {service.name}",
            )


def _find_lost_finalizer(service: KubeService, at: datetime, *, has_default: bool) -> str:
    """Return the finalizer that no process removes, as a user removed the record; "" without one.

    Kubernetes' own may belong to another controller, which has the Services without a class.
    """
    metadata = service.metadata
    if read_balancer_record(service, at) is not None or HAND_BACK_ANNOTATION in metadata.annotations:
        return ""
    if CLASS_FINALIZER in metadata.finalizers:
        return CLASS_FINALIZER
    is_lost = has_default and service.spec.load_balancer_class is None and metadata.deletion_timestamp
    return CLEANUP_FINALIZER if is_lost and CLEANUP_FINALIZER in metadata.finalizers else ""


def _makes_load_balancers(container: Container) -> bool:
    names = ("service-lb-controller", "service")
    return runs_controller(container, *names, variable=_BALANCERS_ENABLED)


def runs_controller(container: Container, *names: str, variable: str) -> bool:
    """Whether it is a cloud controller manager whose controller of these names runs. "*" selects it there.

    "false" in the environment variable stops that controller of hcloud-ccm.
    """
    chosen = container.controllers
    is_off = any(f"-{name}" in chosen for name in names) or not any(name in chosen for name in ("*", *names))
    disabled = any(each.name == variable and each.value == "false" for each in container.env)
    return not is_off and not disabled and _is_cloud_program(container)


def report_several_accounts(what: str, names: Iterable[str], value: str) -> Iterator[Finding]:
    """Yield a finding if several accounts have the same; `value` is that of an account in the chart."""
    listed = list(names)
    if len(listed) > 1:
        yield Finding.wrong(
            f"several accounts have {what}: {format_names(listed)}",
            f"leave them to one account ({value} in the chart value clouds)",
        )


def report_unknown_workloads(seen: InstallationSnapshot) -> Iterator[Finding]:
    """Yield a finding if workloads of other namespaces are unknown."""
    if not seen.is_cluster_wide:
        yield Finding.unknown(
            "workloads in other namespaces are unknown: permission to list them in all namespaces is missing",
            "use credentials that may list deployments and daemonsets in all namespaces:",
            "kubectl auth can-i list deployments.apps --all-namespaces",
        )


def _check_lease_holder(seen: InstallationSnapshot) -> Iterator[Finding]:
    if isinstance(seen.lease, Unavailable):
        return
    namespace, name = seen.installation.lease
    place, holder = f"Lease {namespace}/{name}", seen.lease.holder
    if not seen.lease.is_held(seen.at, slack=_SLACK):
        last = f"; last holder: {holder}" if holder else ""
        yield Finding.wrong(
            f"no watcher leads: {place} has no holder{last}",
            "a running watcher acquires it; its log says why it does not:",
            f"{seen.installation.kubectl} logs {_find_watcher(seen)} --tail 20",
        )
        return
    if isinstance(seen.pods, Unavailable):
        yield Finding.unavailable(
            f"it is unknown whether {holder}, the holder of {place}, is a pod of this installation", seen.pods
        )
        return
    host = holder.partition("_")[0]
    if host in _list_hosts(seen, seen.pods):
        return
    if not seen.lease.is_held(seen.at):
        yield Finding.unknown(
            f"{holder}, the last holder of {place}, is gone, and no watcher has acquired the Lease yet",
            "check again in a minute: a watcher acquires the Lease when it expires",
        )
    else:
        yield Finding.wrong(
            f"{place} is held by {holder}, which is no pod of this installation: another controller leads, "
            "and the watcher waits",
            "find the holder, and remove it or scale it to 0:",
            f"kubectl get pods --all-namespaces --output wide | grep --fixed-strings {host}",
        )


def _list_hosts(seen: InstallationSnapshot, pods: tuple[Pod, ...]) -> set[str]:
    """Return the host names of the pods; that of an own pod on the host network is its node's.

    The kubelet makes the host name of the first 63 characters of a pod's name.
    """
    own = tuple(f"{process.workload.name}-" for process in seen.installation.processes)
    nodes = {pod.spec.node_name for pod in pods if pod.spec.host_network and pod.name.startswith(own)}
    return nodes | {pod.name[:_HOST_LENGTH].rstrip("-.") for pod in pods}


def _find_watcher(seen: InstallationSnapshot) -> str:
    process = seen.installation.find_process("watcher")
    return f"{process.workload.kind.lower()}/{process.workload.name}" if process else "deployment/watcher"


def _find_other_managers(seen: InstallationSnapshot) -> Iterator[Finding]:
    for other in seen.others:
        if other.lease == seen.installation.lease:
            yield Finding.wrong(
                f"a second installation, release {other.release} in {other.namespace}, uses the same Lease: "
                "one of the two is inactive",
                "remove one of them, or configure another Lease and disjoint ownership (docs/ownership.md):",
                f"helm uninstall --namespace {other.namespace} {other.release}",
            )
    ours = list_own_workloads(seen)
    shared = seen.get_ownership(CLOUD_NODE) != Ownership()
    for workload in seen.workloads:
        if str(workload) in ours or not workload.desired_pods:
            continue
        if any(_REFERENCE.search(each.image) for each in workload.pod.containers):
            yield Finding.wrong(
                f"{workload} runs the Talos cloud controller manager of Sidero Labs beside this one: one of "
                "the two waits for the Lease",
                "remove it (docs/migrate.md describes the migration and the way back):",
                _format_delete_command(workload),
            )
        elif any(map(_is_cloud_manager, workload.pod.containers)) and not shared:
            yield Finding.wrong(
                f"{workload} is another cloud controller manager, and `ownership` is not configured",
                "configure `ownership` in the --cloud-config file (docs/ownership.md), or remove the other "
                "one:",
                _format_delete_command(workload),
            )
    # A static pod or a process outside the cluster shows only by its Lease.
    leases = seen.upstream_leases
    for lease in () if shared or isinstance(leases, Unavailable) else leases:
        if lease.is_held(seen.at, slack=_SLACK):
            namespace, _, name = lease.lease_name.partition("/")
            yield Finding.wrong(
                f"Lease {lease.lease_name} is held by {lease.holder}: another cloud controller manager "
                "leads beside this one",
                "configure `ownership` in the --cloud-config file (docs/ownership.md), or remove the other "
                "one; see the holder:",
                f"kubectl --namespace {namespace} get lease {name} --output yaml",
            )


def list_own_workloads(seen: InstallationSnapshot) -> set[str]:
    """Return the workloads of all installations, with those of cloud accounts."""
    installed = {str(w) for i in (seen.installation, *seen.others) for w in i.workloads}
    return installed | {account.place for account in list_accounts(seen.workloads)}


def _is_cloud_manager(container: Container) -> bool:
    """Whether the container is a cloud controller manager; with cloud-node disabled it writes no Node."""
    runs = is_controller_selected(container.controllers, CLOUD_NODE)
    return runs and _is_cloud_program(container)


def _is_cloud_program(container: Container) -> bool:
    """Whether the container runs some cloud controller manager."""
    return _CLOUD.search(_get_program(container)) is not None


def _get_program(container: Container) -> str:
    image = container.image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    return " ".join((image, *(word.rpartition("/")[2] for word in container.command[:1])))


def check_approvers(seen: InstallationSnapshot) -> Check:
    """Check that only csr approves; if there were another approver, the less strict one would decide."""
    if not seen.installation.runs_service("csr"):
        return APPROVAL_OFF
    found = [*_find_other_approvers(seen), *_find_foreign_approvals(seen)]
    yield from found
    if not found and isinstance(seen.requests, Unavailable):
        yield Finding.unavailable("the approvers of requests are unknown", seen.requests)
    elif not found:
        yield from report_unknown_workloads(seen)
    return "no other approver of serving certificates found"


def _find_other_approvers(seen: InstallationSnapshot) -> Iterator[Finding]:
    if seen.get_ownership(CSR_APPROVAL) != Ownership():
        return  # it may approve for Nodes of other controllers
    for workload in seen.workloads:
        images = [each.image for each in workload.pod.containers if _APPROVERS.search(_get_program(each))]
        if images and workload.desired_pods:
            yield Finding.wrong(
                f"{workload} (image {images[0]}) also approves serving certificates: it may approve "
                "requests that csr would deny",
                "remove it, or remove node-csr-approval from enabledControllers:",
                _format_delete_command(workload),
            )


def _find_foreign_approvals(seen: InstallationSnapshot) -> Iterator[Finding]:
    ownership = seen.get_ownership(CSR_APPROVAL)
    # csr leaves the requests of these Nodes to another approver
    others = {node.name for node in list_known(seen.nodes) if why_not_owned(ownership, node)}
    reasons: dict[str, list[str]] = {}
    for filed in list_known(seen.requests):
        approved = filed.find_condition("Approved") if filed.node_name not in others else None
        if approved is not None and approved.reason not in (APPROVED_REASON, *_BY_HAND):
            reasons.setdefault(approved.reason, []).append(filed.name)
    for reason, names in reasons.items():
        yield Finding.wrong(
            f"another approver has approved {format_names(names, 3)}, with the reason {reason!r}",
            "find the approver and remove it; these ClusterRoles permit approval for the signer:",
            "kubectl get clusterroles --output yaml | grep --before-context 12 kubernetes.io/kubelet-serving",
        )


def _format_delete_command(workload: Workload) -> str:
    return f"kubectl --namespace {workload.namespace} delete {workload.kind.lower()} {workload.name}"
