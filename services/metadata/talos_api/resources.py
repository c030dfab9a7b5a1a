"""What we ask a Talos machine for: each resource with the bytes of its Get, List and Watch requests."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from libs.common.cloud_config.fields import Resource
from services.metadata.talos_api.proto.generated.cosi.resource import (
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

Part = Resource | Literal["RouteStatus"]  # of an inventory: what rules may name, and what ipam needs

# kube-proxy in IPVS mode puts every service address on this link: thousands, and none is the machine's.
# RE2 has no negative look-ahead, hence the ladder. Old servers that ignore it answer with all addresses.
NOT_KUBE_IPVS: Final = "^([^k]|k[^u]|ku[^b]|kub[^e]|kube[^-]|kube-[^i]|kube-i[^p])"
# Every address of the machine is a route in the table `local`, those of services on kube-ipvs0 among them.
NOT_LOCAL_ROUTES: Final = "^([^l]|l[^o]|lo[^c]|loc[^a]|loca[^l]|local[^/])"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A resource, or with an empty id all resources of a type."""

    step: str  # how faults and conditions name it
    request: str  # how metrics name it
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


PLATFORM_METADATA: Final = Asked(
    step="PlatformMetadata",
    request="platformmetadata",
    namespace="runtime",
    type="PlatformMetadatas.talos.dev",
    id="platformmetadata",
)
SYSTEM_INFORMATION: Final = Asked(
    step="SystemInformation",
    request="systeminformation",
    namespace="hardware",
    type="SystemInformations.hardware.talos.dev",
    id="systeminformation",
)
ADDRESSES: Final = Asked(
    step="AddressStatus",
    request="addresses",
    namespace="network",
    type="AddressStatuses.net.talos.dev",
    id_regexp=NOT_KUBE_IPVS,
)
NODENAME: Final = Asked(
    step="Nodename",
    request="nodename",
    namespace="k8s",
    type="Nodenames.kubernetes.talos.dev",
    id="nodename",
)
CLUSTER_INFO: Final = Asked(
    step="cluster Info",
    request="clusterinfo",
    namespace="cluster",
    type="Infos.cluster.talos.dev",
    id="current",
)
# Talos 1.14 has a `final-kube-controller-manager` too, which lacks the CIDRs.
CONTROLLER_MANAGER: Final = Asked(
    step="ControllerManagerConfig",
    request="controllermanagerconfig",
    namespace="controlplane",
    type="ControllerManagerConfigs.kubernetes.talos.dev",
    id="kube-controller-manager",
)
MACHINE_STATUS: Final = Asked(
    step="MachineStatus",
    request="machinestatus",
    namespace="runtime",
    type="MachineStatuses.runtime.talos.dev",
    id="machine",
)
MEMBERS: Final = Asked(
    step="Member", request="members", namespace="cluster", type="Members.cluster.talos.dev"
)
# The inventory; what rules may name by the names that `libs.common.cloud_config.fields` has for it.
INVENTORY: Final[Mapping[Part, Asked]] = {
    "Version": Asked(
        step="Version",
        request="version",
        namespace="runtime",
        type="Versions.runtime.talos.dev",
        id="version",
    ),
    "MachineType": Asked(
        step="MachineType",
        request="machinetype",
        namespace="config",
        type="MachineTypes.config.talos.dev",
        id="machine-type",
    ),
    "ExtensionStatus": Asked(
        step="ExtensionStatus",
        request="extensions",
        namespace="runtime",
        type="ExtensionStatuses.runtime.talos.dev",
    ),
    "Processor": Asked(
        step="Processor", request="processors", namespace="hardware", type="Processors.hardware.talos.dev"
    ),
    "MemoryModule": Asked(
        step="MemoryModule",
        request="memorymodules",
        namespace="hardware",
        type="MemoryModules.hardware.talos.dev",
    ),
    "RouteStatus": Asked(
        step="RouteStatus",
        request="routes",
        namespace="network",
        type="RouteStatuses.net.talos.dev",
        id_regexp=NOT_LOCAL_ROUTES,
    ),
}
WATCHED: Final = (PLATFORM_METADATA, ADDRESSES, NODENAME)
