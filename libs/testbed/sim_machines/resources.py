"""The resources of a machine with these facts, encoded as Talos 1.13 does."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

import msgspec

from libs.common.contract.machine import PlatformMetadata
from libs.testbed.machine_facts import Address, SimMachineFacts, SystemInformation
from libs.testbed.sim_machines.lifecycle import (
    MEMBER_OWNER,
    STATUS_OWNER,
    build_member_spec,
    build_status_spec,
)
from libs.testbed.sim_machines.protobuf_wire import Field, encode
from libs.testbed.sim_machines.routes import OWNER, build_routes

_SCOPES = {"global": 0, "site": 200, "link": 253, "host": 254, "nowhere": 255}
_FAMILIES = {4: 2, 6: 10}
_CONTROL_PLANE, _WORKER = 2, 3


class SimResource(msgspec.Struct, frozen=True):
    """A resource without versions. `owner` is the Talos controller that writes it."""

    namespace: str
    type: str
    id: str
    owner: str
    spec: bytes


def build_resources(machine: SimMachineFacts) -> list[SimResource]:
    """Return all resources in the order of their creation. Raises ValueError for an invalid address."""
    return [
        *_build_identity(machine),
        *_build_platform(machine),
        *_build_inventory(machine),
        *_build_addresses(machine),
        *_build_routes(machine),
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


def _build_addresses(machine: SimMachineFacts) -> Iterator[SimResource]:
    for address in machine.addresses:
        try:
            yield _address_status(address)
        except ValueError as error:
            raise ValueError(f'machine "{machine.id}": {error}') from error


def _address_status(address: Address) -> SimResource:
    interface = _interface(address.address)
    prefix: dict[int, Field] = {1: interface.ip.packed, 2: interface.network.prefixlen}
    if address.namespace == "cluster":
        return _make_resource(
            "cluster", "AddressStatuses.net", "service", "cluster.DiscoveryServiceController", {1: prefix}
        )
    if address.scope not in _SCOPES:
        raise ValueError(f"{address.scope} does not belong to Scope values")
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


def _interface(text: str) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    ip, _, length = text.partition("/")
    if not length.isdecimal() or "%" in ip:  # Python accepts a netmask, a missing length and a zone
        raise ValueError(f"{text!r} is not an address with a prefix length")
    return ipaddress.ip_interface(text)


def _build_routes(machine: SimMachineFacts) -> Iterator[SimResource]:
    for name, spec in build_routes(machine):
        yield _make_resource("network", "RouteStatuses.net", name, OWNER, spec)


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
    try:
        if machine.stage:
            spec = build_status_spec(machine.stage)
            yield _make_resource("runtime", "MachineStatuses.runtime", "machine", STATUS_OWNER, spec)
        for member in machine.members:
            yield _make_resource(
                "cluster", "Members.cluster", member.name, MEMBER_OWNER, build_member_spec(member)
            )
    except ValueError as error:
        raise ValueError(f'machine "{machine.id}": {error}') from error


def _make_resource(
    namespace: str, kind: str, name: str, owner: str, spec: Mapping[int, Field]
) -> SimResource:
    return SimResource(namespace, f"{kind}.talos.dev", name, owner, encode(spec))
