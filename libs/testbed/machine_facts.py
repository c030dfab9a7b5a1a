"""What a Talos machine says about itself, and what each platform fills in."""

from __future__ import annotations

import hashlib
import ipaddress
import uuid as uuids
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """The spec of PlatformMetadata. Only `platform` set = the cloud's metadata have not arrived yet."""

    platform: str
    hostname: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    instance_id: str = ""
    provider_id: str = ""
    spot: bool = False
    internal_dns: str = ""
    external_dns: str = ""
    tags: dict[str, str] = {}


class SystemInformation(msgspec.Struct, frozen=True, kw_only=True):
    """The SMBIOS facts that Talos publishes."""

    uuid: str
    manufacturer: str = "QEMU"
    product_name: str = "Standard PC"
    version: str = "pc-q35-9.0"
    serial_number: str = ""
    sku_number: str = ""


PERMANENT = 128
TEMPORARY = 1
DEPRECATED = 32


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """One AddressStatus. In namespace "cluster" it is the address that the discovery service saw."""

    address: str  # with its prefix length; on a point-to-point link the peer's
    link: str = "eth0"
    link_index: int = 2
    local: str = ""  # Talos sets it for IPv4 on real links
    scope: str = "global"
    flags: int = PERMANENT
    namespace: str = "network"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """One machine. An empty field is a resource that does not exist on it.

    `reachable_at` is where the network finds it (values of the `node` header); `addresses` is what it says
    about itself. On an honest machine they agree.
    """

    id: str
    name: str  # the Kubernetes node name
    reachable_at: tuple[str, ...]
    control_plane: bool = False
    hostname: str = ""
    domainname: str = ""
    platform: Platform | None = None
    system_information: SystemInformation | None = None  # never there in container mode
    addresses: tuple[Address, ...] = ()
    pod_cidrs: tuple[str, ...] = ("10.244.0.0/16", "fd00:10:244::/56")
    service_cidrs: tuple[str, ...] = ("10.96.0.0/12", "fd00:10:96::/112")
    cluster_id: str = "q5vZ0Vh0Qb8vYyq1nS0cKJrW2dTn3m1xXgqP6yLh8a0="
    cluster_name: str = "testbed"
    talos_version: str = "v1.13.5"


class _Fills(msgspec.Struct, frozen=True):
    """What a platform tells Talos. Formats see zone, region, id and name; an empty one stays empty."""

    provider_id: str = ""
    instance_id: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    dns: bool = False
    publishes_external_ips: bool = False


_NUMBER, _UUID = "{number}", "{uuid}"

# Talos 1.13, internal/app/machined/pkg/runtime/v1alpha1/platform/*
PLATFORMS: Mapping[str, _Fills] = {
    "akamai": _Fills("linode://{id}", _NUMBER, "de-fra-2", "", "g6-standard-2", publishes_external_ips=True),
    "aws": _Fills(
        "aws:///{zone}/{id}",
        "i-{hex}",
        "us-east-1",
        "us-east-1a",
        "m5.large",
        dns=True,
        publishes_external_ips=True,
    ),
    "azure": _Fills(
        "azure:///subscriptions/{uuid}/resourceGroups/testbed/providers/Microsoft.Compute/virtualMachines/{name}",
        "/subscriptions/{uuid}/resourceGroups/testbed/providers/Microsoft.Compute/virtualMachines/{name}",
        "westeurope",
        "1",
        "Standard_D2s_v3",
        publishes_external_ips=True,
    ),
    "cloudstack": _Fills(
        "cloudstack://{id}", _UUID, "region1", "zone1", "small", publishes_external_ips=True
    ),
    "container": _Fills(instance_type="2CPU-4RAM"),
    "digital-ocean": _Fills("digitalocean://{id}", _NUMBER, "fra1", publishes_external_ips=True),
    "equinixMetal": _Fills(
        "equinixmetal://{id}", _UUID, "fr", "fr2", "c3.small", publishes_external_ips=True
    ),
    "exoscale": _Fills(
        "exoscale://{id}", _UUID, "de-fra-1", "de-fra-1", "medium", publishes_external_ips=True
    ),
    "gcp": _Fills(
        "gce://testbed/{zone}/{name}",
        _NUMBER,
        "europe-west3",
        "europe-west3-a",
        "e2-medium",
        publishes_external_ips=True,
    ),
    "hcloud": _Fills("hcloud://{id}", _NUMBER, "eu-central", "fsn1-dc14", publishes_external_ips=True),
    "metal": _Fills(instance_id=_UUID),
    "nocloud": _Fills("proxmox://region-1/{id}", _NUMBER, "region-1", "pve-1", "2VCPU-4GB"),
    "opennebula": _Fills(instance_id=_NUMBER),
    "openstack": _Fills("openstack:///{id}", _UUID, "", "nova", "m1.medium", publishes_external_ips=True),
    "oracle": _Fills(
        "oci://{id}",
        "ocid1.instance.oc1.eu-frankfurt-1.{hex}",
        "eu-frankfurt-1",
        "FAD-1",
        "VM.Standard.E4.Flex",
    ),
    "scaleway": _Fills(
        "scaleway://instance/{zone}/{id}", _UUID, "fr-par", "fr-par-1", "DEV1-M", publishes_external_ips=True
    ),
    "upcloud": _Fills("upcloud://{id}", _UUID, "", "de-fra1", publishes_external_ips=True),
    "vmware": _Fills(instance_id=_UUID),
    "vultr": _Fills("vultr://{id}", _UUID, "fra", publishes_external_ips=True),
}


def a_machine(
    name: str = "web-1",
    ip: str = "10.0.0.5",
    *,
    ip6: str | None = None,
    platform: str = "metal",
    region: str | None = None,
    zone: str | None = None,
    instance_type: str | None = None,
    instance_id: str | None = None,
    provider_id: str | None = None,
    uuid: str | None = None,
    external_ips: Sequence[str] = (),
    spot: bool = False,
    tags: Mapping[str, str] | None = None,
    **machine: Any,
) -> Machine:
    """A machine that says what this platform makes a Talos machine say, and nothing else.

    The same name gives the same ids. `machine` sets fields of Machine itself.
    """
    fills = PLATFORMS[platform]
    uuid = uuid if uuid is not None else _uuid(name)
    ids = {"name": name, "uuid": uuid, "number": str(_number(name)), "hex": f"{_number(name):017x}"}
    zone = _or(zone, fills.zone)
    instance_id = _or(instance_id, fills.instance_id.format(**ids))
    metadata = Platform(
        platform=platform,
        hostname=name if platform not in {"metal", "container"} else "",
        region=_or(region, fills.region),
        zone=zone,
        instance_type=_or(instance_type, fills.instance_type),
        instance_id=instance_id,
        provider_id=_or(provider_id, fills.provider_id.format(**ids, zone=zone, id=instance_id)),
        spot=spot,
        internal_dns=f"{name}.internal.example" if fills.dns else "",
        external_dns=f"{name}.example" if fills.dns and external_ips else "",
        tags=dict(tags or {}),
    )
    facts: dict[str, Any] = {
        "id": name,
        "name": name,
        "reachable_at": (ip,) if ip6 is None else (ip, ip6),
        "hostname": name,
        "platform": metadata,
        "system_information": None if platform == "container" else SystemInformation(uuid=uuid),
        "addresses": _addresses(ip, ip6, external_ips if fills.publishes_external_ips else ()),
    }
    return Machine(**facts | machine)


def _addresses(ip: str, ip6: str | None, external_ips: Sequence[str]) -> tuple[Address, ...]:
    addresses = [Address(address="127.0.0.1/8", link="lo", link_index=1, local="127.0.0.1", scope="host")]
    addresses.append(_on_link(ip))
    if ip6 is not None:
        addresses.append(_on_link(ip6))
    for external in external_ips:
        length = ipaddress.ip_address(external).max_prefixlen
        addresses.append(Address(address=f"{external}/{length}", link="external", link_index=0, flags=0))
    return tuple(addresses)


def _on_link(ip: str) -> Address:
    if ipaddress.ip_address(ip).version == 4:
        return Address(address=f"{ip}/24", local=ip)
    return Address(address=f"{ip}/64")


def _or(given: str | None, otherwise: str) -> str:
    return otherwise if given is None else given


def _uuid(name: str) -> str:
    return str(uuids.uuid5(uuids.NAMESPACE_DNS, name))


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
