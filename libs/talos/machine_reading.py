"""Reads facts from resources that `select_resources` has checked; other content raises InvalidResponse."""

import ipaddress
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common.contract.machine import AddressStatus, PlatformMetadata, SystemInformation
from libs.talos.cosi_messages import Resource
from libs.talos.proto.generated import (
    ControllerManagerConfigSpec,
    InfoSpec,
    NodenameSpec,
    SystemInformationSpec,
)
from libs.talos.proto.strict import InvalidResponse, fields, parse, require_bytes, require_utf8
from libs.talos.validation import (
    require_number,
    require_smbios_text,
    require_text,
)

MAX_TAGS: Final = 512
MAX_CIDRS: Final = 16
# Read for every machine, so not by the generic decoder, which needs four times as long. By field numbers:
#
#     PlatformMetadataSpec: texts, 8 spot, 11 tags (a map: each entry has 1 key, 2 value).
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
            texts[name] = _text(value, name)
        elif number == _SPOT:
            spot = bool(require_number(value, "spot", 0, 1))
        elif number == _TAGS:
            entry = dict(fields(require_bytes(value, "tag")))
            key = _text(entry.get(1, b""), "tag")
            tags[key] = _text(entry.get(2, b""), f"tag {key}")
    if len(tags) > MAX_TAGS:
        raise InvalidResponse(f"more than {MAX_TAGS} tags")
    return PlatformMetadata(**texts, spot=spot, tags=tags)


def read_system(resources: Sequence[Resource]) -> SystemInformation:
    """Return SystemInformation; invalid UTF-8 becomes the replacement character."""
    spec = parse(SystemInformationSpec, resources[0].spec)
    texts = {
        name: require_smbios_text(getattr(spec, name), name) for name in SystemInformation.__struct_fields__
    }
    return SystemInformation(**texts)


def read_addresses(resources: Sequence[Resource]) -> tuple[AddressStatus, ...]:
    """Return the AddressStatus of these resources, without those whose address is not set."""
    statuses = (_address_status(each.spec, each.id) for each in resources)
    return tuple(status for status in statuses if status is not None)


def read_node_name(resources: Sequence[Resource]) -> str:
    """Return the name under which the kubelet registers; "" if it is not known yet."""
    name = require_text(parse(NodenameSpec, resources[0].spec).nodename, "nodename")
    if name and not _NODE_NAME.match(name):
        raise InvalidResponse(f"{name[:80]!r} is not a node name")
    return name


def read_cluster_name(resources: Sequence[Resource]) -> str:
    """Return the cluster name of the machine config; "" without one."""
    return require_text(parse(InfoSpec, resources[0].spec).cluster_name, "cluster_name")


def read_cluster_networks(resources: Sequence[Resource]) -> MachineConfigNetworks:
    """Return pod and service networks from a control plane's ControllerManagerConfig."""
    spec = parse(ControllerManagerConfigSpec, resources[0].spec)
    return MachineConfigNetworks(
        pod_cidrs=_cidrs(spec.pod_cid_rs, "pod CIDR"),
        service_cidrs=_cidrs(spec.service_cid_rs, "service CIDR"),
        node_cidr_mask_size_ipv4=require_number(spec.node_cidr_mask_size_i_pv4, "IPv4 mask size", 0, 32)
        or None,
        node_cidr_mask_size_ipv6=require_number(spec.node_cidr_mask_size_i_pv6, "IPv6 mask size", 0, 128)
        or None,
    )


def _address_status(spec: bytes, identifier: str) -> AddressStatus | None:
    values = dict(fields(spec))
    address = _address(require_bytes(values.get(1, b""), "address"), identifier)
    status = AddressStatus(
        address=address,
        link=_text(values.get(7, b""), "link_name"),
        scope=require_number(values.get(9, 0), "scope", 0, 255),
        flags=require_number(values.get(10, 0), "flags", 0, 2**32 - 1),
    )
    return status if address else None


def _address(prefix: bytes, identifier: str) -> str:
    """Return the address in Go's format, such as "10.0.0.5/24"; "" if it is not set."""
    values = dict(fields(prefix))
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


def _text(value: object, what: str) -> str:
    return require_text(require_utf8(value, what), what)


def _cidrs(values: object, what: str) -> tuple[str, ...]:
    if not isinstance(values, list) or len(values) > MAX_CIDRS:
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
    stage = dict(fields(spec)).get(_STAGE, 0)
    return _STAGES.get(require_number(stage, "stage", 0, 2**32 - 1), "")


def read_member_names(resources: Sequence[Resource]) -> frozenset[str]:
    """Return the node names of all members: the id of a member is its node name."""
    return frozenset(resource.id for resource in resources)
