"""The resources of a Talos machine that we read, with their Get, List and Watch requests."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from libs.common.cloud_config.fact_fields import TalosResource
from libs.talos.proto.generated import (
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

Part = (
    TalosResource | Literal["RouteStatus"]
)  # inventory resources: those that rules may name, and the one that ipam needs

# kube-proxy in IPVS mode adds every Service address to this link: thousands, none of them the machine's.
# RE2 has no negative look-ahead, hence the ladder. Old servers ignore it and return all addresses.
NOT_KUBE_IPVS: Final = "^([^k]|k[^u]|ku[^b]|kub[^e]|kube[^-]|kube-[^i]|kube-i[^p])"
# Every address of the machine is a route in the table `local`, including the Service addresses on kube-ipvs0.
NOT_LOCAL_ROUTES: Final = "^([^l]|l[^o]|lo[^c]|loc[^a]|loca[^l]|local[^/])"


class ResourceRef(msgspec.Struct, frozen=True):
    """One resource of a machine, or with an empty id all resources of a type."""

    step: str  # its name in faults and conditions
    metric_label: str  # its name in metrics
    namespace: str
    type: str
    id: str = ""
    id_regexp: str = ""
    limit: int = 1  # of resources in a response
    inventory_field: str = ""  # the field of Inventory that has its content

    def get(self) -> bytes:
        """Return a GetRequest, always with options, as Talos' own client sends it."""
        return bytes(GetRequest(namespace=self.namespace, type=self.type, id=self.id, options=GetOptions()))

    def list(self) -> bytes:
        """Return a ListRequest."""
        options = ListOptions(id_query=self._id_query())
        return bytes(ListRequest(namespace=self.namespace, type=self.type, options=options))

    def watch(self) -> bytes:
        """Return a WatchRequest.

        Talos 1.12 and older panic without options. With version 0 the server sends no BOOTSTRAPPED and no
        ERRORED events. A watch on one resource always begins with its present state; a watch on a whole type
        does so only with `bootstrap_contents`.
        """
        return bytes(
            WatchRequest(
                namespace=self.namespace,
                type=self.type,
                id=self.id or None,
                options=WatchOptions(bootstrap_contents=not self.id, id_query=self._id_query()),
                api_version=1,
            )
        )

    def _id_query(self) -> IdQuery | None:
        return IdQuery(regexp=self.id_regexp) if self.id_regexp else None


PLATFORM_METADATA: Final = ResourceRef(
    "PlatformMetadata", "platformmetadata", "runtime", "PlatformMetadatas.talos.dev", id="platformmetadata"
)
SYSTEM_INFORMATION: Final = ResourceRef(
    "SystemInformation",
    "systeminformation",
    "hardware",
    "SystemInformations.hardware.talos.dev",
    id="systeminformation",
)
ADDRESSES: Final = ResourceRef(
    "AddressStatus",
    "addresses",
    "network",
    "AddressStatuses.net.talos.dev",
    id_regexp=NOT_KUBE_IPVS,
    limit=1024,
)
NODENAME: Final = ResourceRef("Nodename", "nodename", "k8s", "Nodenames.kubernetes.talos.dev", id="nodename")
CLUSTER_INFO: Final = ResourceRef(
    "cluster Info", "clusterinfo", "cluster", "Infos.cluster.talos.dev", id="current"
)
# Talos 1.14 also has `final-kube-controller-manager`, which lacks the CIDRs.
CONTROLLER_MANAGER: Final = ResourceRef(
    "ControllerManagerConfig",
    "controllermanagerconfig",
    "controlplane",
    "ControllerManagerConfigs.kubernetes.talos.dev",
    id="kube-controller-manager",
)
MACHINE_STATUS: Final = ResourceRef(
    "MachineStatus", "machinestatus", "runtime", "MachineStatuses.runtime.talos.dev", id="machine"
)
# The discovery service accepts 1024 members per cluster.
MEMBERS: Final = ResourceRef("Member", "members", "cluster", "Members.cluster.talos.dev", limit=2048)
# The inventory. Rules name its parts as in `libs.common.cloud_config.fact_fields`.
INVENTORY: Final[Mapping[Part, ResourceRef]] = {
    "Version": ResourceRef(
        "Version",
        "version",
        "runtime",
        "Versions.runtime.talos.dev",
        id="version",
        inventory_field="talos_version",
    ),
    "MachineType": ResourceRef(
        "MachineType",
        "machinetype",
        "config",
        "MachineTypes.config.talos.dev",
        id="machine-type",
        inventory_field="machine_type",
    ),
    "ExtensionStatus": ResourceRef(
        "ExtensionStatus",
        "extensions",
        "runtime",
        "ExtensionStatuses.runtime.talos.dev",
        limit=512,
        inventory_field="extensions",
    ),
    "Processor": ResourceRef(
        "Processor",
        "processors",
        "hardware",
        "Processors.hardware.talos.dev",
        limit=512,
        inventory_field="processors",
    ),
    "MemoryModule": ResourceRef(
        "MemoryModule",
        "memorymodules",
        "hardware",
        "MemoryModules.hardware.talos.dev",
        limit=512,
        inventory_field="memory_mib",
    ),
    "RouteStatus": ResourceRef(
        "RouteStatus",
        "routes",
        "network",
        "RouteStatuses.net.talos.dev",
        id_regexp=NOT_LOCAL_ROUTES,
        limit=2048,
        inventory_field="gateways",
    ),
}
WATCHED_RESOURCES: Final = (PLATFORM_METADATA, ADDRESSES, NODENAME)
