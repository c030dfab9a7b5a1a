"""The facts that a Talos machine reports about itself, and fleets of machines on several platforms."""

from __future__ import annotations

import hashlib
import ipaddress
import uuid as uuids
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from libs.common.contract.machine import PlatformMetadata
from libs.common.contract.platforms import CONFIGURED_PROVIDER_ID, PLATFORMS
from libs.common.contract.public_addresses import EXTERNAL_LINK
from libs.testbed.platform_examples import PLATFORM_EXAMPLES


class SystemInformation(msgspec.Struct, frozen=True, kw_only=True):
    """The SMBIOS facts that Talos publishes."""

    uuid: str
    manufacturer: str = "QEMU"
    product_name: str = "Standard PC"
    version: str = "pc-q35-9.0"
    serial_number: str = ""
    sku_number: str = ""


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """One ExtensionStatus. The Image Factory's schematic ID is the version of one named "schematic"."""

    name: str
    version: str


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """One SMBIOS socket, populated or not."""

    socket: str = "CPU 0"
    manufacturer: str = "QEMU"
    product_name: str = "pc-q35-9.0"
    boot_speed: int = 2000
    core_count: int = 2
    core_enabled: int = 2
    thread_count: int = 2


class MemoryModule(msgspec.Struct, frozen=True, kw_only=True):
    """One SMBIOS memory slot, populated or not."""

    locator: str = "DIMM 0"
    size: int = 4096  # MiB
    manufacturer: str = "QEMU"


PERMANENT = 128
TEMPORARY = 1


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """One AddressStatus. In the namespace "cluster" it is the address that the discovery service saw."""

    address: str  # with prefix length; on a point-to-point link that of the peer
    link: str = "eth0"
    link_index: int = 2
    local: str = ""  # set by Talos for IPv4 on real links
    scope: str = "global"
    flags: int = PERMANENT
    namespace: str = "network"


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One RouteStatus of the kernel's unicast routes; without a destination it is a default route."""

    gateway: str = ""
    destination: str = ""  # with prefix length
    link: str = "eth0"
    link_index: int = 2
    table: str = "main"  # or "local"
    priority: int = 1024
    ipv6: bool = False


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One Member: a machine of the cluster, as the discovery service reports it."""

    name: str  # the Kubernetes node name, and the resource ID
    node_id: str = ""
    hostname: str = ""
    addresses: tuple[str, ...] = ()
    control_plane: bool = False
    operating_system: str = "Talos (v1.13.5)"


class SimMachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one machine; an empty field is a resource that does not exist.

    `reachable_at` are the network addresses (values of the `node` header). `addresses` are the ones that it
    reports. On an honest machine they agree.
    """

    id: str
    name: str  # the Kubernetes node name
    reachable_at: tuple[str, ...]
    control_plane: bool = False
    hostname: str = ""
    domainname: str = ""
    platform: PlatformMetadata | None = None  # with only `platform` set, the cloud has not answered yet
    system_information: SystemInformation | None = None  # absent in container mode
    addresses: tuple[Address, ...] = ()
    pod_cidrs: tuple[str, ...] = ("10.244.0.0/16", "fd00:10:244::/56")
    service_cidrs: tuple[str, ...] = ("10.96.0.0/12", "fd00:10:96::/112")
    cluster_id: str = "q5vZ0Vh0Qb8vYyq1nS0cKJrW2dTn3m1xXgqP6yLh8a0="
    cluster_name: str = "testbed"
    talos_version: str = "v1.13.5"
    extensions: tuple[Extension, ...] = ()
    processors: tuple[Processor, ...] = ()  # absent in container mode, like memory modules
    memory_modules: tuple[MemoryModule, ...] = ()
    routes: tuple[Route, ...] = ()
    stage: str = "running"  # of MachineStatus: "booting", "shutting down", ...
    members: tuple[Member, ...] = ()  # the discovered members, including itself; () = discovery is off


def make_machine(
    name: str = "web-1",
    ip: str = "10.0.0.5",
    *,
    ip6: str | None = None,
    platform: str = "metal",
    region: str | None = None,
    zone: str | None = None,
    uuid: str | None = None,
    external_ips: Sequence[str] = (),
    spot: bool = False,
    tags: Mapping[str, str] | None = None,
    **machine: Any,
) -> SimMachineFacts:
    """Return a machine with the facts that Talos reports on this platform, and no others.

    The same name results in the same IDs. `machine` sets fields of SimMachineFacts.
    """
    example = PLATFORM_EXAMPLES[platform]
    uuid = uuid if uuid is not None else _uuid(name)
    ids = {"name": name, "uuid": uuid, "number": str(_number(name)), "hex": f"{_number(name):017x}"}
    region, zone = _default_to(region, example.region), _default_to(zone, example.zone)
    instance_id = example.instance_id.format(**ids)
    metadata = PlatformMetadata(
        platform=platform,
        hostname=name if example.has_hostname else "",
        region=region,
        zone=zone,
        instance_type=example.instance_type,
        instance_id=instance_id,
        provider_id=format_provider_id(platform, **ids, region=region, zone=zone, id=instance_id),
        spot=spot,
        internal_dns=f"{name}.internal.example" if example.has_dns_names else "",
        external_dns=f"{name}.example" if example.has_dns_names and external_ips else "",
        tags=dict(tags or {}),
    )
    facts: dict[str, Any] = {
        "id": name,
        "name": name,
        "reachable_at": (ip,) if ip6 is None else (ip, ip6),
        "hostname": name,
        "platform": metadata,
        "system_information": None if platform == "container" else SystemInformation(uuid=uuid),
        "addresses": _addresses(ip, ip6, external_ips if example.reports_addresses else ()),
    }
    return SimMachineFacts(**facts | machine)


def make_member(machine: SimMachineFacts) -> Member:
    """Return the Member that represents this machine in its cluster after discovery."""
    return Member(
        name=machine.name,
        node_id=hashlib.sha256(machine.id.encode()).hexdigest()[:44],
        hostname=".".join(part for part in (machine.hostname, machine.domainname) if part),
        addresses=machine.reachable_at,
        control_plane=machine.control_plane,
        operating_system=f"Talos ({machine.talos_version})",
    )


def _addresses(ip: str, ip6: str | None, external_ips: Sequence[str]) -> tuple[Address, ...]:
    addresses = [Address(address="127.0.0.1/8", link="lo", link_index=1, local="127.0.0.1", scope="host")]
    addresses.append(_make_address(ip))
    if ip6 is not None:
        addresses.append(_make_address(ip6))
    addresses += map(_make_external_address, external_ips)
    return tuple(addresses)


def _make_address(ip: str) -> Address:
    if ipaddress.ip_address(ip).version == 4:
        return Address(address=f"{ip}/24", local=ip)
    return Address(address=f"{ip}/64")


def replace_external_address(machine: SimMachineFacts, ip: str) -> tuple[Address, ...]:
    """Return the machine's addresses with this one as the only external one."""
    others = (each for each in machine.addresses if each.link != EXTERNAL_LINK)
    return (*others, _make_external_address(ip))


def _make_external_address(ip: str) -> Address:
    length = ipaddress.ip_address(ip).max_prefixlen
    return Address(address=f"{ip}/{length}", link=EXTERNAL_LINK, link_index=0, flags=0)


def _default_to(given: str | None, otherwise: str) -> str:
    return otherwise if given is None else given


def _uuid(name: str) -> str:
    return str(uuids.uuid5(uuids.NAMESPACE_DNS, name))


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])


# A mixed fleet: each platform has its own providerID format.
MIXED_FLEET: Final = ("aws", "metal", "hcloud", "nocloud", "gcp", "azure", "openstack", "vultr")
_GROUP = _PROJECT = "testbed"


def format_provider_id(platform: str, **values: str) -> str:
    """Return the providerID that Talos reports for a machine with these values."""
    form = PLATFORMS[platform].provider_id
    form = PLATFORM_EXAMPLES[platform].provider_id if form == CONFIGURED_PROVIDER_ID else form
    return form.format(group=_GROUP, project=_PROJECT, **values)


MAX_NODES: Final = 20000  # the address ranges below have room for these


def make_numbered_machine(name: str, number: int, platform: str, cluster_name: str) -> SimMachineFacts:
    """Make a dual-stack machine with an external address; each number has its own addresses."""
    high, low = divmod(number, 250)
    return make_machine(
        name,
        f"10.{64 + high // 250}.{high % 250}.{low + 1}",
        ip6=f"2001:db8:64::{number + 1:x}",
        platform=platform,
        external_ips=(f"198.51.{100 + high}.{low + 1}",),
        cluster_name=cluster_name,
    )


def make_mixed_fleet(count: int, cluster_name: str, *, digits: int) -> list[SimMachineFacts]:
    """Make machines such as aws-001 and metal-002 on alternating platforms; larger fleets start the same."""
    platforms = [MIXED_FLEET[number % len(MIXED_FLEET)] for number in range(count)]
    return [
        make_numbered_machine(f"{platform}-{number:0{digits}}", number, platform, cluster_name)
        for number, platform in enumerate(platforms, 1)
    ]
