"""What a Service tells about its balancer: addresses, the condition, and Kubernetes' Events."""

from typing import Any, Final, Literal

import msgspec

from libs.clouds.balancers import Ingress, UnknownOutcome, WriteRejection, WriteResult
from libs.clouds.instances import NotFound
from libs.common.contract.kube_service import KubeService
from services.cloud.core.balancers.balancer_steps import (
    BlockedCondition,
    ChangeBalancer,
    CloudWrite,
    DeleteBalancer,
    KubeWrite,
    RecordBalancer,
    Rejected,
    ReleaseService,
    Settled,
    Wait,
    WaitReason,
    WriteStatus,
)

# The reasons of k8s.io/cloud-provider, and our own where it has none.
EventReason = Literal[
    "EnsuringLoadBalancer",
    "EnsuredLoadBalancer",
    "UpdatedLoadBalancer",
    "UpdateLoadBalancerFailed",
    "SyncLoadBalancerFailed",
    "UnAvailableLoadBalancer",
    "DeletingLoadBalancer",
    "DeletedLoadBalancer",
    "LoadBalancerFieldIgnored",
    "LoadBalancerTargetIgnored",
    "LoadBalancerReleased",
    "LoadBalancerAbandoned",
    "DeletingDuplicateLoadBalancer",
]


class ServiceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One Event of a Service. Equal Events have the same cause."""

    reason: EventReason
    message: str
    is_warning: bool = False


_DELETING: Final = ServiceEvent(reason="DeletingLoadBalancer", message="Deleting load balancer")


def read_ingress(service: KubeService) -> tuple[Ingress, ...]:
    """Return the addresses in the Service's status, in the form of a plan."""
    return tuple(
        Ingress(ip=each.ip, hostname=each.hostname, is_proxy=each.ip_mode == "Proxy")
        for each in service.status.load_balancer.ingress
    )


def has_ingress(service: KubeService, ingress: tuple[Ingress, ...] | None) -> bool:
    """Return whether the status has these addresses. Kubernetes before 1.30 does not store their ipMode."""
    if ingress is not None and all(each.ip_mode is None for each in service.status.load_balancer.ingress):
        ingress = tuple(msgspec.structs.replace(each, is_proxy=False) for each in ingress)
    return read_ingress(service) == ingress


def find_condition(service: KubeService) -> BlockedCondition | None:
    """Return this controller's condition of the Service."""
    found = service.blocked_condition
    return None if found is None else BlockedCondition(reason=found.reason, message=found.message)


def plan_condition(service: KubeService, wait: Wait) -> Wait | WriteStatus:
    """Return the write of the condition where the wait's reason changes it, else the wait."""
    name = wait.reason.condition_reason
    desired = BlockedCondition(reason=name, message=wait.reason.explain()) if name else None
    is_decided = desired is not None or isinstance(wait.reason, Settled)
    if not is_decided or desired == find_condition(service):
        return wait
    return WriteStatus(ingress=None, condition=desired)


def describe_wait(reason: WaitReason, settled_before: Settled | None) -> tuple[ServiceEvent, ...]:
    """Return the Events of a wait. `settled_before` is the last `Settled` of this process."""
    if isinstance(reason, Settled):
        return _describe_settled(reason, settled_before)
    text = reason.explain()
    if not text or isinstance(reason, Rejected):  # told when it happened
        return ()
    return (ServiceEvent(reason="SyncLoadBalancerFailed", message=text, is_warning=True),)


def describe_write(
    step: CloudWrite[Any, Any] | KubeWrite, result: WriteResult | NotFound | None
) -> tuple[ServiceEvent, ...]:
    """Return the Events of a write with its result; None = the API server has confirmed it."""
    if isinstance(result, WriteRejection) and result.target is not None:
        return ()  # one Event names all targets that are left out
    is_gone = isinstance(result, NotFound)
    kept = _describe_kept(step) if isinstance(step, DeleteBalancer) and not is_gone else ()
    if isinstance(result, WriteRejection | UnknownOutcome):
        failed: EventReason = (
            "UpdateLoadBalancerFailed" if isinstance(step, ChangeBalancer) else "SyncLoadBalancerFailed"
        )
        warning = ServiceEvent(reason=failed, message=result.reason, is_warning=True)
        is_end = isinstance(step, DeleteBalancer) and not (step.is_double or step.has_failed)
        return (_DELETING, *kept, warning) if is_end else (warning,)
    event = _describe_success(step)
    return () if event is None else (event, *kept)


def _describe_kept(step: DeleteBalancer) -> tuple[ServiceEvent, ...]:
    """Return the Event that names what outlives the balancer.

    Also after a deletion that fails or ends late: the next look may not show it any more.
    """
    text = f"what load balancer {step.balancer_id} used stays: {', '.join(step.kept)}"
    event = ServiceEvent(reason="LoadBalancerReleased", message=text, is_warning=True)
    return (event,) if step.kept else ()


def _describe_settled(settled: Settled, before: Settled | None) -> tuple[ServiceEvent, ...]:
    events = []
    if before is None or before.desired != settled.desired:
        events.append(ServiceEvent(reason="EnsuredLoadBalancer", message="Ensured load balancer"))
    elif before.targets != settled.targets:
        events.append(
            ServiceEvent(reason="UpdatedLoadBalancer", message="Updated load balancer with new hosts")
        )
    if not settled.targets:
        text = "There are no available nodes for LoadBalancer"
        events.append(ServiceEvent(reason="UnAvailableLoadBalancer", message=text, is_warning=True))
    if text := settled.explain():
        events.append(ServiceEvent(reason="SyncLoadBalancerFailed", message=text, is_warning=True))
    if settled.left_out:
        text = f"the cloud rejects targets, will retry: {', '.join(map(str, settled.left_out))}"
        events.append(ServiceEvent(reason="LoadBalancerTargetIgnored", message=text, is_warning=True))
    events += [
        ServiceEvent(reason="LoadBalancerFieldIgnored", message=text, is_warning=True)
        for text in settled.warnings
    ]
    return tuple(events)


def _describe_success(step: CloudWrite[Any, Any] | KubeWrite) -> ServiceEvent | None:
    match step:
        case RecordBalancer(record=record) if record.create_deadline is not None:
            return ServiceEvent(reason="EnsuringLoadBalancer", message="Ensuring load balancer")
        case DeleteBalancer(balancer_id=balancer_id, is_double=True):
            text = f"Deleted load balancer {balancer_id}: it is not the recorded one"
            return ServiceEvent(reason="DeletingDuplicateLoadBalancer", message=text)
        case DeleteBalancer(balancer_id=balancer_id, has_failed=True):
            text = f"load balancer {balancer_id} failed before it was ready: it is deleted, and replaced"
            return ServiceEvent(reason="SyncLoadBalancerFailed", message=text, is_warning=True)
        case DeleteBalancer():
            return _DELETING
        case ChangeBalancer(balancer_id=balancer_id, is_release=True, kept=kept):
            others = f", beside {', '.join(kept)}" if kept else ""
            text = (
                f"load balancer {balancer_id} is protected or kept, or existed before: it stays, without "
                f"ports, targets and tags of ours{others}"
            )
            return ServiceEvent(reason="LoadBalancerReleased", message=text, is_warning=True)
        case ReleaseService():
            return _describe_release(step)
    return None


def _describe_release(step: ReleaseService) -> ServiceEvent:
    match step:
        case ReleaseService(kept=kept) if kept:
            text = f"load balancer {kept} has no tags of this Service: it stays, and costs money"
            return ServiceEvent(reason="LoadBalancerReleased", message=text, is_warning=True)
        case ReleaseService(handed_back=handed_back) if handed_back:
            text = f"load balancer {handed_back} is handed back to the cloud's own controller"
            return ServiceEvent(reason="LoadBalancerReleased", message=text)
        case ReleaseService(left_to=left_to) if left_to:
            text = (
                f"account {left_to} has the load balancer: the record named another account, and is removed"
            )
            return ServiceEvent(reason="LoadBalancerReleased", message=text, is_warning=True)
        case ReleaseService(abandoned=""):
            return ServiceEvent(reason="DeletedLoadBalancer", message="Deleted load balancer")
        case ReleaseService(abandoned=abandoned):
            text = f"load balancer {abandoned} is given up as annotated: if it exists, it costs money"
            return ServiceEvent(reason="LoadBalancerAbandoned", message=text, is_warning=True)
