"""The resources of a machine with these facts, encoded as Talos 1.13 does."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

import msgspec

from libs.common.contract.machine import PlatformMetadata
from libs.testbed.machine_facts import Address, Route, SimMachineFacts, SystemInformation
from libs.testbed.sim_machines.protobuf_wire import Field, encode

_SCOPES = {"global": 0, "site": 200, "link": 253, "host": 254, "nowhere": 255}
_FAMILIES = {4: 2, 6: 10}
_CONTROL_PLANE, _WORKER = 2, 3
_TABLES = {"main": 254, "local": 255}
_UNICAST, _STATIC = 1, 4
_STAGES = {
    "unknown": 0,
    "booting": 1,
    "installing": 2,
    "maintenance": 3,
    "running": 4,
    "rebooting": 5,
    "shutting down": 6,
    "resetting": 7,
    "upgrading": 8,
}


class SimResource(msgspec.Struct, frozen=True):
    """A resource without versions. `owner` is the Talos controller that writes it."""

    namespace: str
    type: str
    id: str
    owner: str
    spec: bytes


def build_resources(machine: SimMachineFacts) -> list[SimResource]:
    """Return all resources in the order of their creation."""
    return [
        *_build_identity(machine),
        *_build_platform(machine),
        *_build_inventory(machine),
        *map(_address_status, machine.addresses),
        *map(_build_route, machine.routes),
        *_build_cluster(machine),
        *_build_lifecycle(machine),
    ]


def _build_identity(machine: SimMachineFacts) -> Iterator[SimResource]:
    if machine.name:
        yield _make_resource(
            "k8s", "Nodenames.kubernetes", "nodename", "k8s.NodenameController", {1: machine.name, 2: "1"}
        )
    if machine.hostname:
        spec = {1: machine.hostname, 2: machine.domainname}
        yield _make_resource(
            "network", "HostnameStatuses.net", "hostname", "network.HostnameSpecController", spec
        )
    if machine.talos_version:
        spec = {2: "Talos", 1: machine.talos_version}
        yield _make_resource("runtime", "Versions.runtime", "version", "runtime.VersionController", spec)
    kind = _CONTROL_PLANE if machine.control_plane else _WORKER
    yield _make_resource(
        "config", "MachineTypes.config", "machine-type", "config.MachineTypeController", {1: kind}
    )


def _build_platform(machine: SimMachineFacts) -> Iterator[SimResource]:
    if machine.platform is not None:
        yield _make_resource(
            "runtime",
            "PlatformMetadatas",
            "platformmetadata",
            "network.PlatformConfigApplyController",
            _metadata(machine.platform),
        )
    if machine.system_information is not None:
        yield _make_resource(
            "hardware",
            "SystemInformations.hardware",
            "systeminformation",
            "hardware.SystemInfoController",
            _system_information(machine.system_information),
        )


def _metadata(platform: PlatformMetadata) -> dict[int, Field]:
    tags = [{1: [key], 2: [value]} for key, value in sorted(platform.tags.items())]  # includes empty values
    texts = (platform.platform, platform.hostname, platform.region, platform.zone, platform.instance_type)
    names = (platform.internal_dns, platform.external_dns)
    values = (*texts, platform.instance_id, platform.provider_id, platform.spot, *names, tags)
    return dict(enumerate(values, 1))


def _system_information(system: SystemInformation) -> dict[int, Field]:
    texts = (system.manufacturer, system.product_name, system.version, system.serial_number, system.uuid)
    return {**dict(enumerate(texts, 1)), 7: system.sku_number}


def _build_inventory(machine: SimMachineFacts) -> Iterator[SimResource]:
    for number, extension in enumerate(machine.extensions):
        metadata: dict[int, Field] = {1: extension.name, 2: extension.version}
        spec: dict[int, Field] = {1: f"{number:03}.sqsh", 2: metadata}
        owner = "runtime.ExtensionStatusController"
        yield _make_resource("runtime", "ExtensionStatuses.runtime", str(number), owner, spec)
    for cpu in machine.processors:
        name = cpu.socket.replace(" ", "-")
        spec = {
            1: cpu.socket,
            2: cpu.manufacturer,
            3: cpu.product_name,
            5: cpu.boot_speed,
            10: cpu.core_count,
            11: cpu.core_enabled,
            12: cpu.thread_count,
        }
        yield _make_resource("hardware", "Processors.hardware", name, "hardware.SystemInfoController", spec)
    for module in machine.memory_modules:
        name = module.locator.replace(" ", "-")
        spec = {1: module.size, 2: module.locator, 5: module.manufacturer}
        yield _make_resource(
            "hardware", "MemoryModules.hardware", name, "hardware.SystemInfoController", spec
        )


def _address_status(address: Address) -> SimResource:
    interface = ipaddress.ip_interface(address.address)
    prefix: dict[int, Field] = {1: interface.ip.packed, 2: interface.network.prefixlen}
    if address.namespace == "cluster":
        return _make_resource(
            "cluster", "AddressStatuses.net", "service", "cluster.DiscoveryServiceController", {1: prefix}
        )
    spec: dict[int, Field] = {
        1: prefix,
        2: {1: ipaddress.ip_address(address.local).packed} if address.local else {},
        6: address.link_index,
        7: address.link,
        8: _FAMILIES[interface.version],
        9: _SCOPES[address.scope],
        10: address.flags,
    }
    name = f"{address.link}/{interface.with_prefixlen}"
    return _make_resource("network", "AddressStatuses.net", name, "network.AddressStatusController", spec)


def _build_route(route: Route) -> SimResource:
    table = "" if route.table == "main" else f"{route.table}/"
    family = f"{route.link}/inet6" if route.ipv6 else "inet4"
    name = f"{table}{family}/{route.gateway}/{route.destination}/{route.priority}"
    spec: dict[int, Field] = {
        1: _FAMILIES[6 if route.ipv6 else 4],
        2: _prefix(route.destination),
        3: {},
        4: _gateway(route.gateway),
        5: route.link_index,
        6: route.link,
        7: _TABLES[route.table],
        8: route.priority,
        10: _UNICAST,
        12: _STATIC,
    }
    return _make_resource("network", "RouteStatuses.net", name, "network.RouteStatusController", spec)


def _gateway(text: str) -> dict[int, Field]:
    if not text:
        return {}
    ip, _, zone = text.partition("%")
    return {1: ipaddress.ip_address(ip).packed + zone.encode()}


def _prefix(text: str) -> dict[int, Field]:
    if not text:
        return {}
    ip, _, length = text.partition("/")
    return {1: ipaddress.ip_address(ip).packed, 2: int(length)}


def _build_cluster(machine: SimMachineFacts) -> Iterator[SimResource]:
    if machine.cluster_id or machine.cluster_name:
        spec: dict[int, Field] = {1: machine.cluster_id, 2: machine.cluster_name}
        yield _make_resource("cluster", "Infos.cluster", "current", "cluster.InfoController", spec)
    if machine.control_plane:
        spec = {1: True, 3: "external", 4: machine.pod_cidrs, 5: machine.service_cidrs}
        yield _make_resource(
            "controlplane",
            "ControllerManagerConfigs.kubernetes",
            "kube-controller-manager",
            "k8s.ControlPlaneControllerManagerController",
            spec,
        )


def _build_lifecycle(machine: SimMachineFacts) -> Iterator[SimResource]:
    """Build the status, where a running machine is ready, and the discovered members."""
    if stage := machine.stage:
        spec: dict[int, Field] = {1: _STAGES[stage], 2: {1: True} if stage == "running" else {}}
        owner = "runtime.MachineStatusController"
        yield _make_resource("runtime", "MachineStatuses.runtime", "machine", owner, spec)
    for member in machine.members:
        spec = {
            1: member.node_id,
            2: [{1: ipaddress.ip_address(address).packed} for address in member.addresses],
            3: member.hostname,
            4: _CONTROL_PLANE if member.control_plane else _WORKER,
            5: member.operating_system,
        }
        yield _make_resource("cluster", "Members.cluster", member.name, "cluster.MemberController", spec)


def _make_resource(
    namespace: str, kind: str, name: str, owner: str, spec: Mapping[int, Field]
) -> SimResource:
    return SimResource(namespace, f"{kind}.talos.dev", name, owner, encode(spec))


def build_version_response(machine: SimMachineFacts) -> bytes:
    """Return a machine.VersionResponse with one message, without build facts other than the tag."""
    name = machine.platform.platform if machine.platform else ""
    platform: dict[int, Field] = {1: name, 2: _get_mode(name)}
    answer: dict[int, Field] = {
        2: {1: machine.talos_version, 5: "linux", 6: "amd64"},
        3: platform,
        4: {1: True},  # role-based access control is enabled
    }
    return encode({1: [answer]})


def _get_mode(platform: str) -> str:
    if platform in {"metal", "container"}:
        return platform
    return "cloud" if platform else "metal"
