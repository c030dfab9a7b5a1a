"""Reads facts from resources that `select_resources` has checked; other content raises InvalidResponse."""

import ipaddress
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common.contract.machine import AddressStatus, PlatformMetadata, SystemInformation
from libs.talos.cosi_messages import Resource
from libs.talos.proto.generated import (
    AddressStatusSpec,
    ControllerManagerConfigSpec,
    InfoSpec,
    NetIpPrefix,
    NodenameSpec,
    PlatformMetadataSpec,
    SystemInformationSpec,
)
from libs.talos.proto.strict import InvalidResponse, fields, parse, require_bytes
from libs.talos.validation import (
    require_bool,
    require_number,
    require_smbios_text,
    require_text,
)

MAX_TAGS: Final = 512
MAX_CIDRS: Final = 16
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
    spec = parse(PlatformMetadataSpec, resources[0].spec)
    if len(spec.tags) > MAX_TAGS:
        raise InvalidResponse(f"more than {MAX_TAGS} tags")
    return PlatformMetadata(
        platform=require_text(spec.platform, "platform"),
        hostname=require_text(spec.hostname, "hostname"),
        region=require_text(spec.region, "region"),
        zone=require_text(spec.zone, "zone"),
        instance_type=require_text(spec.instance_type, "instance_type"),
        instance_id=require_text(spec.instance_id, "instance_id"),
        provider_id=require_text(spec.provider_id, "provider_id"),
        spot=require_bool(spec.spot, "spot"),
        internal_dns=require_text(spec.internal_dns, "internal_dns"),
        external_dns=require_text(spec.external_dns, "external_dns"),
        tags={
            require_text(key, "tag"): require_text(value, f"tag {key}") for key, value in spec.tags.items()
        },
    )


def read_system(resources: Sequence[Resource]) -> SystemInformation:
    """Return SystemInformation; invalid UTF-8 becomes the replacement character."""
    spec = parse(SystemInformationSpec, resources[0].spec)
    texts = {
        name: require_smbios_text(getattr(spec, name), name) for name in SystemInformation.__struct_fields__
    }
    return SystemInformation(**texts)


def read_addresses(resources: Sequence[Resource]) -> tuple[AddressStatus, ...]:
    """Return the AddressStatus of these resources, without those whose address is not set."""
    statuses = (_address_status(parse(AddressStatusSpec, each.spec), each.id) for each in resources)
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


def _address_status(spec: AddressStatusSpec, identifier: str) -> AddressStatus | None:
    prefix = spec.address if spec.address is not None else NetIpPrefix()
    if not isinstance(prefix, NetIpPrefix):
        raise InvalidResponse(f"the address of {identifier!r} is none")
    address = _address(prefix, identifier)
    status = AddressStatus(
        address=address,
        link=require_text(spec.link_name, "link_name"),
        scope=require_number(spec.scope, "scope", 0, 255),
        flags=require_number(spec.flags, "flags", 0, 2**32 - 1),
    )
    return status if address else None


def _address(prefix: NetIpPrefix, identifier: str) -> str:
    """Return the address in Go's format, such as "10.0.0.5/24"; "" if it is not set."""
    raw = require_bytes(prefix.ip, "ip")
    if len(raw) not in {0, 4, 16}:
        raise InvalidResponse(f"the address of {identifier!r} is neither 4 nor 16 bytes long")
    length = require_number(prefix.prefix_length, "prefix length", -1, 8 * len(raw))
    if not raw:
        return ""
    if length < 0:
        raise InvalidResponse(f"the address of {identifier!r} has the prefix length {length}")
    if len(raw) == 4:
        return f"{ipaddress.IPv4Address(raw)}/{length}"
    mapped = ipaddress.IPv6Address(raw).ipv4_mapped
    return f"{f'::ffff:{mapped}' if mapped else ipaddress.IPv6Address(raw)}/{length}"


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
