"""Bytes from a machine -> facts. Nothing a machine can send has another outcome than facts or Unreadable."""

import ipaddress
import re
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from libs.common.machine import AddressStatus, PlatformMetadata, SystemInformation
from services.metadata.talos_api.checked import (
    Unreadable,
    checked_id,
    flag,
    number,
    raw_bytes,
    resource_in,
    smbios,
    text,
)
from services.metadata.talos_api.envelopes import Resource
from services.metadata.talos_api.proto.generated.common import NetIpPrefix
from services.metadata.talos_api.proto.generated.talos.resource.definitions.cluster import InfoSpec
from services.metadata.talos_api.proto.generated.talos.resource.definitions.hardware import (
    SystemInformationSpec,
)
from services.metadata.talos_api.proto.generated.talos.resource.definitions.k8s import (
    ControllerManagerConfigSpec,
    NodenameSpec,
)
from services.metadata.talos_api.proto.generated.talos.resource.definitions.network import AddressStatusSpec
from services.metadata.talos_api.proto.generated.talos.resource.definitions.runtime import (
    PlatformMetadataSpec,
)
from services.metadata.talos_api.proto.strict import Malformed, Message, parse
from services.metadata.talos_api.resources import (
    ADDRESSES,
    CLUSTER_INFO,
    CONTROLLER_MANAGER,
    NODENAME,
    PLATFORM_METADATA,
    SYSTEM_INFORMATION,
    Asked,
)

M = TypeVar("M", bound=Message)

MOST_TAGS: Final = 512
MOST_ADDRESSES: Final = 1024
MOST_CIDRS: Final = 16
_NODE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")


class ClusterNetworks(msgspec.Struct, frozen=True, kw_only=True):
    """The pod and service networks of the machine config; a mask size is None before Talos 1.14."""

    pod_cidrs: tuple[str, ...]
    service_cidrs: tuple[str, ...]
    node_cidr_mask_size_ipv4: int | None = None
    node_cidr_mask_size_ipv6: int | None = None


def read_platform(answer: bytes) -> PlatformMetadata:
    """PlatformMetadata from a GetResponse."""
    return platform_in(resource_in(answer))


def platform_in(resource: Resource) -> PlatformMetadata:
    """PlatformMetadata from its resource."""
    spec = _spec_of(resource, PLATFORM_METADATA, PlatformMetadataSpec)
    if len(spec.tags) > MOST_TAGS:
        raise Unreadable(f"more than {MOST_TAGS} tags")
    return PlatformMetadata(
        platform=text(spec.platform, "platform"),
        hostname=text(spec.hostname, "hostname"),
        region=text(spec.region, "region"),
        zone=text(spec.zone, "zone"),
        instance_type=text(spec.instance_type, "instance_type"),
        instance_id=text(spec.instance_id, "instance_id"),
        provider_id=text(spec.provider_id, "provider_id"),
        spot=flag(spec.spot, "spot"),
        internal_dns=text(spec.internal_dns, "internal_dns"),
        external_dns=text(spec.external_dns, "external_dns"),
        tags={text(key, "tag"): text(value, f"tag {key}") for key, value in spec.tags.items()},
    )


def read_system(answer: bytes) -> SystemInformation:
    """SystemInformation from a GetResponse; bytes that are not UTF-8 become the replacement character."""
    spec = _get(answer, SYSTEM_INFORMATION, SystemInformationSpec)
    return SystemInformation(
        manufacturer=smbios(spec.manufacturer, "manufacturer"),
        product_name=smbios(spec.product_name, "product_name"),
        version=smbios(spec.version, "version"),
        serial_number=smbios(spec.serial_number, "serial_number"),
        uuid=smbios(spec.uuid, "uuid"),
        wake_up_type=smbios(spec.wake_up_type, "wake_up_type"),
        sku_number=smbios(spec.sku_number, "sku_number"),
    )


def read_addresses(answers: Sequence[bytes]) -> tuple[AddressStatus, ...]:
    """AddressStatus from ListResponses, by id; an entry whose address is not set is none."""
    if len(answers) > MOST_ADDRESSES:
        raise Unreadable(f"more than {MOST_ADDRESSES} addresses")
    return addresses_in([resource_in(answer) for answer in answers])


def addresses_in(resources: Sequence[Resource]) -> tuple[AddressStatus, ...]:
    """AddressStatus from their resources, by id."""
    if len(resources) > MOST_ADDRESSES:
        raise Unreadable(f"more than {MOST_ADDRESSES} addresses")
    statuses: dict[str, AddressStatus | None] = {}
    for resource in resources:
        identifier = checked_id(resource, ADDRESSES)
        if identifier in statuses:
            raise Unreadable(f"two resources with the id {identifier!r}")
        statuses[identifier] = _address_status(_parse(AddressStatusSpec, resource.spec), identifier)
    return tuple(status for _, status in sorted(statuses.items()) if status is not None)


def read_node_name(answer: bytes) -> str:
    """The name that the kubelet registers with; "" when it is not known yet."""
    return node_name_in(resource_in(answer))


def node_name_in(resource: Resource) -> str:
    """The name that the kubelet registers with, from its resource."""
    name = text(_spec_of(resource, NODENAME, NodenameSpec).nodename, "nodename")
    if name and not _NODE_NAME.match(name):
        raise Unreadable(f"{name[:80]!r} is not a node name")
    return name


def read_cluster_name(answer: bytes) -> str:
    """The cluster's name in the machine config; "" if it has none."""
    return text(_get(answer, CLUSTER_INFO, InfoSpec).cluster_name, "cluster_name")


def read_cluster_networks(answer: bytes) -> ClusterNetworks:
    """Pod and service networks from a control plane's ControllerManagerConfig."""
    spec = _get(answer, CONTROLLER_MANAGER, ControllerManagerConfigSpec)
    return ClusterNetworks(
        pod_cidrs=_cidrs(spec.pod_cid_rs, "pod CIDR"),
        service_cidrs=_cidrs(spec.service_cid_rs, "service CIDR"),
        node_cidr_mask_size_ipv4=number(spec.node_cidr_mask_size_i_pv4, "IPv4 mask size", 0, 32) or None,
        node_cidr_mask_size_ipv6=number(spec.node_cidr_mask_size_i_pv6, "IPv6 mask size", 0, 128) or None,
    )


def _get(answer: bytes, asked: Asked, spec: type[M]) -> M:
    return _spec_of(resource_in(answer), asked, spec)


def _spec_of(resource: Resource, asked: Asked, spec: type[M]) -> M:
    checked_id(resource, asked)
    return _parse(spec, resource.spec)


def _parse(message: type[M], data: bytes) -> M:
    try:
        return parse(message, data)
    except Malformed as error:
        raise Unreadable(str(error)) from error


def _address_status(spec: AddressStatusSpec, identifier: str) -> AddressStatus | None:
    prefix = spec.address if spec.address is not None else NetIpPrefix()
    if not isinstance(prefix, NetIpPrefix):
        raise Unreadable(f"the address of {identifier!r} is none")
    address = _address(prefix, identifier)
    status = AddressStatus(
        address=address,
        link=text(spec.link_name, "link_name"),
        scope=number(spec.scope, "scope", 0, 255),
        flags=number(spec.flags, "flags", 0, 2**32 - 1),
    )
    return status if address else None


def _address(prefix: NetIpPrefix, identifier: str) -> str:
    """Text such as "10.0.0.5/24", as Go writes it; "" if the address is not set."""
    raw = raw_bytes(prefix.ip, "ip")
    if len(raw) not in {0, 4, 16}:
        raise Unreadable(f"the address of {identifier!r} is neither 4 nor 16 bytes long")
    length = number(prefix.prefix_length, "prefix length", -1, 8 * len(raw))
    if not raw:
        return ""
    if length < 0:
        raise Unreadable(f"the address of {identifier!r} has the prefix length {length}")
    if len(raw) == 4:
        return f"{ipaddress.IPv4Address(raw)}/{length}"
    mapped = ipaddress.IPv6Address(raw).ipv4_mapped
    return f"{f'::ffff:{mapped}' if mapped else ipaddress.IPv6Address(raw)}/{length}"


def _cidrs(values: object, what: str) -> tuple[str, ...]:
    if not isinstance(values, list) or len(values) > MOST_CIDRS:
        raise Unreadable(f"more than {MOST_CIDRS} of {what}")
    texts = tuple(text(value, what) for value in values)
    for cidr in texts:
        try:
            ipaddress.ip_network(cidr, strict=False)
        except ValueError as error:
            raise Unreadable(f"{cidr[:80]!r} is not a {what}") from error
    return texts
