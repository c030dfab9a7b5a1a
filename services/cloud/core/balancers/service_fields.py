"""The fields of a Service in the form of an adapter, and those that the process writes."""

from datetime import datetime

import msgspec

from libs.clouds.balancers import BalancerRequest, Ingress, Port
from libs.common.contract.kube_service import (
    BALANCER_ANNOTATION,
    BALANCER_BLOCKED_CONDITION,
    CLASS_FINALIZER,
    CLEANUP_FINALIZER,
    SOURCE_RANGES_ANNOTATION,
    USE_ANNOTATION,
    KubeService,
    KubeServiceCondition,
    LoadBalancerIngress,
)
from services.cloud.core.balancers.balancer_steps import BlockedCondition


def build_request(service: KubeService) -> BalancerRequest:
    """Return the fields that describe the load balancer."""
    spec = service.spec
    is_local = spec.external_traffic_policy == "Local"
    return BalancerRequest(
        namespace=service.metadata.namespace,
        name=service.name,
        uid=service.uid,
        annotations=service.metadata.annotations,
        ports=tuple(
            Port(
                name=port.name,
                protocol=port.protocol,
                port=port.port,
                node_port=port.node_port,
                app_protocol=port.app_protocol,
            )
            for port in spec.ports
        ),
        source_ranges=spec.load_balancer_source_ranges or _read_source_ranges(service),
        ip_families=spec.ip_families,
        load_balancer_ip=spec.load_balancer_ip,
        health_check_node_port=spec.health_check_node_port if is_local else 0,
        keeps_clients=spec.session_affinity == "ClientIP",
        creates_balancer=not service.metadata.annotations.get(USE_ANNOTATION),
    )


def _read_source_ranges(service: KubeService) -> tuple[str, ...]:
    """Return the ranges of the annotation, which cloud-provider obeys, too."""
    text = service.metadata.annotations.get(SOURCE_RANGES_ANNOTATION, "").strip()
    return tuple(text.split(",")) if text else ()


def build_ingress_entries(ingress: tuple[Ingress, ...]) -> tuple[LoadBalancerIngress, ...]:
    """Return the entries of the status; ipMode belongs to addresses only."""
    return tuple(
        LoadBalancerIngress(
            ip=each.ip,
            hostname=each.hostname,
            ip_mode=("Proxy" if each.is_proxy else "VIP") if each.ip else None,
        )
        for each in ingress
    )


def build_finalizers(service: KubeService) -> tuple[str, ...]:
    """Return all finalizers with the needed one, which replaces ours of a former class."""
    needed = service.needed_finalizer
    if BALANCER_ANNOTATION in service.metadata.annotations:
        others = build_released_finalizers(service)
    else:
        others = tuple(each for each in service.metadata.finalizers if each != CLASS_FINALIZER)
    return (*(each for each in others if each != needed), needed)


def build_released_finalizers(service: KubeService) -> tuple[str, ...]:
    """Return all finalizers but ours. If it has both, Kubernetes' own is another controller's."""
    finalizers = service.metadata.finalizers
    ours = CLASS_FINALIZER if CLASS_FINALIZER in finalizers else CLEANUP_FINALIZER
    return tuple(each for each in finalizers if each != ours)


def build_conditions(
    service: KubeService, blocked: BlockedCondition | None, now: datetime
) -> tuple[KubeServiceCondition, ...]:
    """Return all conditions of the Service, with ours as given."""
    others = tuple(each for each in service.status.conditions if each.type != BALANCER_BLOCKED_CONDITION)
    if blocked is None:
        return others
    before = next((each for each in service.status.conditions if each not in others), None)
    is_new = before is None or before.status != "True" or not before.last_transition_time
    ours = KubeServiceCondition(
        type=BALANCER_BLOCKED_CONDITION,
        status="True",
        reason=blocked.reason,
        message=blocked.message,
        last_transition_time=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    if before is not None and not is_new:
        ours = msgspec.structs.replace(ours, last_transition_time=before.last_transition_time)
    return (*others, ours)
