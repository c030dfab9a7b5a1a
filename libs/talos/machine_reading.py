"""Reads facts from resources that `select_resources` has checked; other content raises InvalidResponse."""

import ipaddress
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common.contract.machine import AddressStatus, PlatformMetadata, SystemInformation
from libs.talos.cosi_messages import Resource
from libs.talos.protobuf import (
    InvalidResponse,
    fields,
    read_message,
    require_bytes,
    require_number,
    require_smbios_text,
    require_text,
)

MAX_TAGS: Final = 512
MAX_CIDRS: Final = 16
# The fields, by the numbers of Talos's .proto files:
#
#     PlatformMetadataSpec: texts, 8 spot, 11 tags (a map: each entry has 1 key, 2 value).
#     SystemInformationSpec: texts. NodenameSpec: 1 nodename. InfoSpec (cluster): 2 cluster_name.
#     ControllerManagerConfigSpec: 4 pod_cid_rs, 5 service_cid_rs (both repeated); since Talos 1.14
#     12 node_cidr_mask_size_i_pv4, 13 node_cidr_mask_size_i_pv6.
#     AddressStatusSpec: 1 address (NetIPPrefix), 7 link_name, 9 scope, 10 flags. The scope is rtnetlink's: 0
#     global, 200 site, 253 link, 254 host, 255 nowhere.
#     NetIPPrefix: 1 ip (Go's netip.Addr.MarshalBinary), 2 prefix_length, -1 in an unset prefix that was
#     encoded explicitly (Talos 1.11 and older).
_PLATFORM_TEXTS: Final = {
    1: "platform",
    2: "hostname",
    3: "region",
    4: "zone",
    5: "instance_type",
    6: "instance_id",
    7: "provider_id",
    9: "internal_dns",  # Talos 1.8
    10: "external_dns",  # Talos 1.8
}
_SYSTEM_TEXTS: Final = {
    1: "manufacturer",
    2: "product_name",
    3: "version",
    4: "serial_number",
    5: "uuid",
    6: "wake_up_type",
    7: "sku_number",
}
_SPOT: Final = 8
_TAGS: Final = 11  # Talos 1.10
_MINUS_ONE: Final = 2**64 - 1  # as a varint
_STAGE: Final = 1  # field number in MachineStatusSpec
_STAGES: Final = {
    1: "booting",
    2: "installing",
    3: "maintenance",
    4: "running",
    5: "rebooting",
    6: "shutting down",
    7: "resetting",
    8: "upgrading",
}
_NODE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")


class MachineConfigNetworks(msgspec.Struct, frozen=True, kw_only=True):
    """The pod and service networks of the machine config; a mask size is None before Talos 1.14."""

    pod_cidrs: tuple[str, ...]
    service_cidrs: tuple[str, ...]
    node_cidr_mask_size_ipv4: int | None = None
    node_cidr_mask_size_ipv6: int | None = None


def read_platform(resources: Sequence[Resource]) -> PlatformMetadata:
    """Return PlatformMetadata from its resource."""
    texts: dict[str, str] = {}
    tags: dict[str, str] = {}
    spot = False
    for number, value in fields(resources[0].spec):
        if name := _PLATFORM_TEXTS.get(number):
            texts[name] = require_text(value, name)
        elif number == _SPOT:
            spot = bool(require_number(value, "spot", 0, 1))
        elif number == _TAGS:
            entry = read_message(value)
            key = require_text(entry.get(1, b""), "tag")
            tags[key] = require_text(entry.get(2, b""), f"tag {key}")
    if len(tags) > MAX_TAGS:
        raise InvalidResponse(f"more than {MAX_TAGS} tags")
    return PlatformMetadata(**texts, spot=spot, tags=tags)


def read_system(resources: Sequence[Resource]) -> SystemInformation:
    """Return SystemInformation; invalid UTF-8 becomes the replacement character."""
    spec = read_message(resources[0].spec)
    return SystemInformation(
        **{name: require_smbios_text(spec.get(number, b""), name) for number, name in _SYSTEM_TEXTS.items()}
    )


def read_addresses(resources: Sequence[Resource]) -> tuple[AddressStatus, ...]:
    """Return the AddressStatus of these resources, without those whose address is not set."""
    statuses = (_address_status(each.spec, each.id) for each in resources)
    return tuple(status for status in statuses if status is not None)


def read_node_name(resources: Sequence[Resource]) -> str:
    """Return the name under which the kubelet registers; "" if it is not known yet."""
    name = require_text(read_message(resources[0].spec).get(1, b""), "nodename")
    if name and not _NODE_NAME.match(name):
        raise InvalidResponse(f"{name[:80]!r} is not a node name")
    return name


def read_cluster_name(resources: Sequence[Resource]) -> str:
    """Return the cluster name of the machine config; "" without one."""
    return require_text(read_message(resources[0].spec).get(2, b""), "cluster_name")


def read_cluster_networks(resources: Sequence[Resource]) -> MachineConfigNetworks:
    """Return pod and service networks from a control plane's ControllerManagerConfig."""
    spec = tuple(fields(resources[0].spec))
    sizes = dict(spec)
    return MachineConfigNetworks(
        pod_cidrs=_cidrs([value for number, value in spec if number == 4], "pod CIDR"),
        service_cidrs=_cidrs([value for number, value in spec if number == 5], "service CIDR"),
        node_cidr_mask_size_ipv4=require_number(sizes.get(12, 0), "IPv4 mask size", 0, 32) or None,
        node_cidr_mask_size_ipv6=require_number(sizes.get(13, 0), "IPv6 mask size", 0, 128) or None,
    )


def _address_status(spec: bytes, identifier: str) -> AddressStatus | None:
    values = read_message(spec)
    address = _address(values.get(1, b""), identifier)
    status = AddressStatus(
        address=address,
        link=require_text(values.get(7, b""), "link_name"),
        scope=require_number(values.get(9, 0), "scope", 0, 255),
        flags=require_number(values.get(10, 0), "flags", 0, 2**32 - 1),
    )
    return status if address else None


def _address(prefix: int | bytes, identifier: str) -> str:
    """Return the address in Go's format, such as "10.0.0.5/24"; "" if it is not set."""
    values = read_message(prefix)
    raw, length = require_bytes(values.get(1, b""), "ip"), values.get(2, 0)
    if len(raw) not in {0, 4, 16}:
        raise InvalidResponse(f"the address of {identifier!r} is neither 4 nor 16 bytes long")
    length = -1 if length == _MINUS_ONE else require_number(length, "prefix length", 0, 8 * len(raw))
    if not raw:
        return ""
    if length < 0:
        raise InvalidResponse(f"the address of {identifier!r} has the prefix length {length}")
    if len(raw) == 4:
        return f"{ipaddress.IPv4Address(raw)}/{length}"
    mapped = ipaddress.IPv6Address(raw).ipv4_mapped
    return f"{f'::ffff:{mapped}' if mapped else ipaddress.IPv6Address(raw)}/{length}"


def _cidrs(values: Sequence[int | bytes], what: str) -> tuple[str, ...]:
    if len(values) > MAX_CIDRS:
        raise InvalidResponse(f"more than {MAX_CIDRS} of {what}")
    texts = tuple(require_text(value, what) for value in values)
    for cidr in texts:
        try:
            ipaddress.ip_network(cidr, strict=False)
        except ValueError as error:
            raise InvalidResponse(f"{cidr[:80]!r} is not a {what}") from error
    return texts


def read_stage(resources: Sequence[Resource]) -> str:
    """Return the stage of a machine, "" if unknown."""
    return decode_stage(resources[0].spec)


def decode_stage(spec: bytes) -> str:
    """Return the stage of an encoded MachineStatusSpec, without the readiness."""
    stage = read_message(spec).get(_STAGE, 0)
    return _STAGES.get(require_number(stage, "stage", 0, 2**32 - 1), "")


def read_member_names(resources: Sequence[Resource]) -> frozenset[str]:
    """Return the node names of all members: the id of a member is its node name."""
    return frozenset(resource.id for resource in resources)
