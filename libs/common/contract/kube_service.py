"""The fields of a Kubernetes Service that this project reads, with the structure and names of core/v1."""

import hashlib
from typing import Final

import msgspec

from libs.common.contract.node import ANNOTATION_VALUE_LIMIT, ApiObject, ObjectMeta

LOAD_BALANCER: Final = "LoadBalancer"
# A Service with one of these may have paid objects in a cloud. Kubernetes' own controller sets the first, and
# removes it from every Service that ends, even from one with a class. So those with a class get the second.
CLEANUP_FINALIZER: Final = "service.kubernetes.io/load-balancer-cleanup"
CLASS_FINALIZER: Final = "service.cloudprovider.kubernetes.io/talos-ccm-cleanup"
# Which account has a balancer for this Service, and its id. Whoever may write Services may write it, so a
# balancer counts only with the tags of this Service.
BALANCER_ANNOTATION: Final = "service.cloudprovider.kubernetes.io/talos-ccm-balancer"
# Set by an operator: the id of a balancer that is given up, because no credential for it returns.
ABANDON_ANNOTATION: Final = "service.cloudprovider.kubernetes.io/talos-ccm-abandon"
# Set by users: the id of a balancer that exists. It gets the tags of this Service if no other Service has it.
USE_ANNOTATION: Final = "service.cloudprovider.kubernetes.io/talos-ccm-use"
# Set by users: the balancer stays at the end of the Service, without its tags. Any value but false counts.
KEEP_ANNOTATION: Final = "service.cloudprovider.kubernetes.io/talos-ccm-keep"
# Set by an operator: the id of a balancer that the cloud's own controller takes over.
HAND_BACK_ANNOTATION: Final = "service.cloudprovider.kubernetes.io/talos-ccm-hand-back"
# Of Kubernetes, from before `spec.loadBalancerSourceRanges`, which wins: networks separated by commas.
SOURCE_RANGES_ANNOTATION: Final = "service.beta.kubernetes.io/load-balancer-source-ranges"
# Condition of the account's process, with negative polarity: absent on Services that are never blocked.
BALANCER_BLOCKED_CONDITION: Final = "TalosLoadBalancerBlocked"
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"  # the whole object again


class KubeServiceMeta(ObjectMeta, frozen=True, kw_only=True):
    """The fields of a Service's metadata that this project reads."""

    namespace: str = ""
    finalizers: tuple[str, ...] = ()


class ServicePort(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One element of spec.ports; `target_port` is of no interest to a load balancer."""

    name: str = ""
    protocol: str = "TCP"
    port: int
    node_port: int = 0
    app_protocol: str = ""


class KubeServiceSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The fields of a Service's spec that this project reads."""

    type: str = "ClusterIP"
    load_balancer_class: str | None = None
    load_balancer_ip: str = msgspec.field(name="loadBalancerIP", default="")
    load_balancer_source_ranges: tuple[str, ...] = ()
    external_traffic_policy: str = ""
    health_check_node_port: int = 0
    session_affinity: str = ""
    ip_families: tuple[str, ...] = ()
    ports: tuple[ServicePort, ...] = ()


class LoadBalancerIngress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One element of status.loadBalancer.ingress."""

    ip: str = ""
    hostname: str = ""
    ip_mode: str | None = msgspec.field(name="ipMode", default=None)


class LoadBalancerStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """status.loadBalancer."""

    ingress: tuple[LoadBalancerIngress, ...] = ()


class KubeServiceCondition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One element of status.conditions (meta/v1 Condition)."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str | None = None


class KubeServiceStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The fields of a Service's status that this project reads."""

    load_balancer: LoadBalancerStatus = LoadBalancerStatus()
    conditions: tuple[KubeServiceCondition, ...] = ()


class KubeService(ApiObject, frozen=True, kw_only=True):
    """A Service as the API server encodes it; `ServiceSpec` describes this project's own services."""

    metadata: KubeServiceMeta
    spec: KubeServiceSpec = KubeServiceSpec()
    status: KubeServiceStatus = KubeServiceStatus()

    @property
    def key(self) -> str:
        """`<namespace>.<name>`: neither contains a dot."""
        return f"{self.metadata.namespace}.{self.metadata.name}"

    @property
    def blocked_condition(self) -> KubeServiceCondition | None:
        """The condition that says that the load balancer is blocked; None if it is not."""
        for each in self.status.conditions:
            if each.type == BALANCER_BLOCKED_CONDITION and each.status == "True":
                return each
        return None

    @property
    def may_have_balancer(self) -> bool:
        """Whether it wants a load balancer, or may still have one, or a condition about one."""
        is_blocked = self.blocked_condition is not None
        return self.spec.type == LOAD_BALANCER or self.has_finalizer or is_blocked

    @property
    def has_finalizer(self) -> bool:
        """Whether it has a finalizer of load balancers: of ours, or of Kubernetes' own controller."""
        return not {CLASS_FINALIZER, CLEANUP_FINALIZER}.isdisjoint(self.metadata.finalizers)

    @property
    def needed_finalizer(self) -> str:
        """The finalizer that it needs before something is created for it."""
        return CLEANUP_FINALIZER if self.spec.load_balancer_class is None else CLASS_FINALIZER


def trim_kube_service(service: KubeService) -> KubeService:
    """Return the Service for publishing, without labels and with long annotations as their digest.

    The message reports a change, and its reader gets the Service from the API server.
    """
    annotations = {
        key: value if len(value) <= ANNOTATION_VALUE_LIMIT else _digest(value)
        for key, value in service.metadata.annotations.items()
        if key != _LAST_APPLIED
    }
    metadata = msgspec.structs.replace(service.metadata, labels={}, annotations=annotations)
    return msgspec.structs.replace(service, metadata=metadata)


def _digest(value: str) -> str:
    return f"sha256:{hashlib.sha256(value.encode(errors='surrogatepass')).hexdigest()}"
