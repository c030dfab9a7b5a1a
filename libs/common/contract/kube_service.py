"""The fields of a Kubernetes Service that this project reads, with the structure and names of core/v1."""

from typing import Final

import msgspec

from libs.common.contract.node import ApiObject

LOAD_BALANCER: Final = "LoadBalancer"
# Kubernetes' own name: a Service with it may have paid objects in a cloud.
CLEANUP_FINALIZER: Final = "service.kubernetes.io/load-balancer-cleanup"
# Which account has a balancer for this Service, and its id. Whoever may write Services may write it, so a
# balancer counts only with the tags of this Service.
BALANCER_ANNOTATION: Final = "service.cloudprovider.kubernetes.io/talos-ccm-balancer"
# Set by an operator: the id of a balancer that is given up, because no credential for it returns.
ABANDON_ANNOTATION: Final = "service.cloudprovider.kubernetes.io/talos-ccm-abandon"


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
    allocate_load_balancer_node_ports: bool = True
    external_traffic_policy: str = ""
    health_check_node_port: int = 0
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


class KubeServiceStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The fields of a Service's status that this project reads."""

    load_balancer: LoadBalancerStatus = LoadBalancerStatus()


class KubeService(ApiObject, frozen=True, kw_only=True):
    """A Service as the API server encodes it; `ServiceSpec` describes this project's own services."""

    spec: KubeServiceSpec = KubeServiceSpec()
    status: KubeServiceStatus = KubeServiceStatus()
