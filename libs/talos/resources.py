"""What we ask a Talos machine for: each resource with the bytes of its Get, List and Watch requests."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from libs.common.cloud_config.fact_fields import TalosResource
from libs.talos.proto.generated.cosi.resource import (
    GetOptions,
    GetRequest,
    IdQuery,
    ListOptions,
    ListRequest,
    WatchOptions,
    WatchRequest,
)

GET: Final = "/cosi.resource.State/Get"
LIST: Final = "/cosi.resource.State/List"
WATCH: Final = "/cosi.resource.State/Watch"

Part = TalosResource | Literal["RouteStatus"]  # of an inventory: what rules may name, and what ipam needs

# kube-proxy in IPVS mode puts every service address on this link: thousands, and none is the machine's.
# RE2 has no negative look-ahead, hence the ladder. Old servers that ignore it answer with all addresses.
NOT_KUBE_IPVS: Final = "^([^k]|k[^u]|ku[^b]|kub[^e]|kube[^-]|kube-[^i]|kube-i[^p])"
# Every address of the machine is a route in the table `local`, those of services on kube-ipvs0 among them.
NOT_LOCAL_ROUTES: Final = "^([^l]|l[^o]|lo[^c]|loc[^a]|loca[^l]|local[^/])"


class ResourceRef(msgspec.Struct, frozen=True, kw_only=True):
    """A resource, or with an empty id all resources of a type."""

    step: str  # how faults and conditions name it
    metric_label: str  # how metrics name it
    namespace: str
    type: str
    id: str = ""
    id_regexp: str = ""

    def get(self) -> bytes:
        """GetRequest, always with options, as Talos's own client sends it."""
        return bytes(GetRequest(namespace=self.namespace, type=self.type, id=self.id, options=GetOptions()))

    def list(self) -> bytes:
        """ListRequest."""
        query = IdQuery(regexp=self.id_regexp) if self.id_regexp else None
        return bytes(
            ListRequest(namespace=self.namespace, type=self.type, options=ListOptions(id_query=query))
        )

    def watch(self) -> bytes:
        """WatchRequest. Options are never absent (Talos 1.12 and older panic without them) and the version
        is 1 (with 0 the server keeps BOOTSTRAPPED and ERRORED events to itself). A watch on one resource
        begins with its present state by itself; one on all of a type does so only when it is asked to.
        """
        query = IdQuery(regexp=self.id_regexp) if self.id_regexp else None
        return bytes(
            WatchRequest(
                namespace=self.namespace,
                type=self.type,
                id=self.id or None,
                options=WatchOptions(bootstrap_contents=not self.id, id_query=query),
                api_version=1,
            )
        )


PLATFORM_METADATA: Final = ResourceRef(
    step="PlatformMetadata",
    metric_label="platformmetadata",
    namespace="runtime",
    type="PlatformMetadatas.talos.dev",
    id="platformmetadata",
)
SYSTEM_INFORMATION: Final = ResourceRef(
    step="SystemInformation",
    metric_label="systeminformation",
    namespace="hardware",
    type="SystemInformations.hardware.talos.dev",
    id="systeminformation",
)
ADDRESSES: Final = ResourceRef(
    step="AddressStatus",
    metric_label="addresses",
    namespace="network",
    type="AddressStatuses.net.talos.dev",
    id_regexp=NOT_KUBE_IPVS,
)
NODENAME: Final = ResourceRef(
    step="Nodename",
    metric_label="nodename",
    namespace="k8s",
    type="Nodenames.kubernetes.talos.dev",
    id="nodename",
)
CLUSTER_INFO: Final = ResourceRef(
    step="cluster Info",
    metric_label="clusterinfo",
    namespace="cluster",
    type="Infos.cluster.talos.dev",
    id="current",
)
# Talos 1.14 has a `final-kube-controller-manager` too, which lacks the CIDRs.
CONTROLLER_MANAGER: Final = ResourceRef(
    step="ControllerManagerConfig",
    metric_label="controllermanagerconfig",
    namespace="controlplane",
    type="ControllerManagerConfigs.kubernetes.talos.dev",
    id="kube-controller-manager",
)
MACHINE_STATUS: Final = ResourceRef(
    step="MachineStatus",
    metric_label="machinestatus",
    namespace="runtime",
    type="MachineStatuses.runtime.talos.dev",
    id="machine",
)
MEMBERS: Final = ResourceRef(
    step="Member", metric_label="members", namespace="cluster", type="Members.cluster.talos.dev"
)
# The inventory; what rules may name by the names that `libs.common.cloud_config.fact_fields` has for it.
INVENTORY: Final[Mapping[Part, ResourceRef]] = {
    "Version": ResourceRef(
        step="Version",
        metric_label="version",
        namespace="runtime",
        type="Versions.runtime.talos.dev",
        id="version",
    ),
    "MachineType": ResourceRef(
        step="MachineType",
        metric_label="machinetype",
        namespace="config",
        type="MachineTypes.config.talos.dev",
        id="machine-type",
    ),
    "ExtensionStatus": ResourceRef(
        step="ExtensionStatus",
        metric_label="extensions",
        namespace="runtime",
        type="ExtensionStatuses.runtime.talos.dev",
    ),
    "Processor": ResourceRef(
        step="Processor",
        metric_label="processors",
        namespace="hardware",
        type="Processors.hardware.talos.dev",
    ),
    "MemoryModule": ResourceRef(
        step="MemoryModule",
        metric_label="memorymodules",
        namespace="hardware",
        type="MemoryModules.hardware.talos.dev",
    ),
    "RouteStatus": ResourceRef(
        step="RouteStatus",
        metric_label="routes",
        namespace="network",
        type="RouteStatuses.net.talos.dev",
        id_regexp=NOT_LOCAL_ROUTES,
    ),
}
WATCHED_RESOURCES: Final = (PLATFORM_METADATA, ADDRESSES, NODENAME)
