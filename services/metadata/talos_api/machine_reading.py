"""Bytes from a machine -> facts. Nothing a machine can send has another outcome than facts or Unreadable."""

import ipaddress
import re
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from libs.common.machine import AddressStatus, PlatformMetadata, SystemInformation
from services.metadata.talos_api.envelopes import Resource, response
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

LONGEST_TEXT: Final = 1024
MOST_TAGS: Final = 512
MOST_ADDRESSES: Final = 1024
MOST_CIDRS: Final = 16
_NODE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")


class Unreadable(Exception):
    """What no Talos would send; the text says what was wrong with it."""


class ClusterNetworks(msgspec.Struct, frozen=True, kw_only=True):
    """The pod and service networks of the machine config; a mask size is None before Talos 1.14."""

    pod_cidrs: tuple[str, ...]
    service_cidrs: tuple[str, ...]
    node_cidr_mask_size_ipv4: int | None = None
    node_cidr_mask_size_ipv6: int | None = None


def read_platform(answer: bytes) -> PlatformMetadata:
    """PlatformMetadata from a GetResponse."""
    return platform_in(_response(answer))


def platform_in(resource: Resource) -> PlatformMetadata:
    """PlatformMetadata from its resource."""
    spec = _spec_of(resource, PLATFORM_METADATA, PlatformMetadataSpec)
    if len(spec.tags) > MOST_TAGS:
        raise Unreadable(f"more than {MOST_TAGS} tags")
    return PlatformMetadata(
        platform=_text(spec.platform, "platform"),
        hostname=_text(spec.hostname, "hostname"),
        region=_text(spec.region, "region"),
        zone=_text(spec.zone, "zone"),
        instance_type=_text(spec.instance_type, "instance_type"),
        instance_id=_text(spec.instance_id, "instance_id"),
        provider_id=_text(spec.provider_id, "provider_id"),
        spot=_flag(spec.spot, "spot"),
        internal_dns=_text(spec.internal_dns, "internal_dns"),
        external_dns=_text(spec.external_dns, "external_dns"),
        tags={_text(key, "tag"): _text(value, f"tag {key}") for key, value in spec.tags.items()},
    )


def read_system(answer: bytes) -> SystemInformation:
    """SystemInformation from a GetResponse; bytes that are not UTF-8 become the replacement character."""
    spec = _get(answer, SYSTEM_INFORMATION, SystemInformationSpec)
    return SystemInformation(
        manufacturer=_smbios(spec.manufacturer, "manufacturer"),
        product_name=_smbios(spec.product_name, "product_name"),
        version=_smbios(spec.version, "version"),
        serial_number=_smbios(spec.serial_number, "serial_number"),
        uuid=_smbios(spec.uuid, "uuid"),
        wake_up_type=_smbios(spec.wake_up_type, "wake_up_type"),
        sku_number=_smbios(spec.sku_number, "sku_number"),
    )


def read_addresses(answers: Sequence[bytes]) -> tuple[AddressStatus, ...]:
    """AddressStatus from ListResponses, by id; an entry whose address is not set is none."""
    if len(answers) > MOST_ADDRESSES:
        raise Unreadable(f"more than {MOST_ADDRESSES} addresses")
    return addresses_in([_response(answer) for answer in answers])


def addresses_in(resources: Sequence[Resource]) -> tuple[AddressStatus, ...]:
    """AddressStatus from their resources, by id."""
    if len(resources) > MOST_ADDRESSES:
        raise Unreadable(f"more than {MOST_ADDRESSES} addresses")
    statuses: dict[str, AddressStatus | None] = {}
    for resource in resources:
        identifier = _checked_id(resource, ADDRESSES)
        if identifier in statuses:
            raise Unreadable(f"two resources with the id {identifier!r}")
        statuses[identifier] = _address_status(_parse(AddressStatusSpec, resource.spec), identifier)
    return tuple(status for _, status in sorted(statuses.items()) if status is not None)


def read_node_name(answer: bytes) -> str:
    """The name that the kubelet registers with; "" when it is not known yet."""
    return node_name_in(_response(answer))


def node_name_in(resource: Resource) -> str:
    """The name that the kubelet registers with, from its resource."""
    name = _text(_spec_of(resource, NODENAME, NodenameSpec).nodename, "nodename")
    if name and not _NODE_NAME.match(name):
        raise Unreadable(f"{name[:80]!r} is not a node name")
    return name


def read_cluster_name(answer: bytes) -> str:
    """The cluster's name in the machine config; "" if it has none."""
    return _text(_get(answer, CLUSTER_INFO, InfoSpec).cluster_name, "cluster_name")


def read_cluster_networks(answer: bytes) -> ClusterNetworks:
    """Pod and service networks from a control plane's ControllerManagerConfig."""
    spec = _get(answer, CONTROLLER_MANAGER, ControllerManagerConfigSpec)
    return ClusterNetworks(
        pod_cidrs=_cidrs(spec.pod_cid_rs, "pod CIDR"),
        service_cidrs=_cidrs(spec.service_cid_rs, "service CIDR"),
        node_cidr_mask_size_ipv4=_number(spec.node_cidr_mask_size_i_pv4, "IPv4 mask size", 0, 32) or None,
        node_cidr_mask_size_ipv6=_number(spec.node_cidr_mask_size_i_pv6, "IPv6 mask size", 0, 128) or None,
    )


def _get(answer: bytes, asked: Asked, spec: type[M]) -> M:
    return _spec_of(_response(answer), asked, spec)


def _spec_of(resource: Resource, asked: Asked, spec: type[M]) -> M:
    _checked_id(resource, asked)
    return _parse(spec, resource.spec)


def _response(answer: bytes) -> Resource:
    try:
        return response(answer)
    except Malformed as error:
        raise Unreadable(str(error)) from error


def _parse(message: type[M], data: bytes) -> M:
    try:
        return parse(message, data)
    except Malformed as error:
        raise Unreadable(str(error)) from error


def _checked_id(resource: Resource, asked: Asked) -> str:
    """The id, once the resource is known to be what was asked for."""
    told = (
        _text(resource.namespace, "namespace"),
        _text(resource.type, "type"),
        _text(resource.id, "id"),
    )
    if told[:2] != (asked.namespace, asked.type) or told[2] != (asked.id or told[2]) or not told[2]:
        wanted = f"{asked.namespace}/{asked.type}/{asked.id or '*'}"
        raise Unreadable(f"asked for {wanted}, answered with {'/'.join(told)[:200]!r}")
    return told[2]


def _address_status(spec: AddressStatusSpec, identifier: str) -> AddressStatus | None:
    prefix = spec.address if spec.address is not None else NetIpPrefix()
    if not isinstance(prefix, NetIpPrefix):
        raise Unreadable(f"the address of {identifier!r} is none")
    address = _address(prefix, identifier)
    status = AddressStatus(
        address=address,
        link=_text(spec.link_name, "link_name"),
        scope=_number(spec.scope, "scope", 0, 255),
        flags=_number(spec.flags, "flags", 0, 2**32 - 1),
    )
    return status if address else None


def _address(prefix: NetIpPrefix, identifier: str) -> str:
    """Text such as "10.0.0.5/24", as Go writes it; "" if the address is not set."""
    raw = _bytes(prefix.ip, "ip")
    if len(raw) not in {0, 4, 16}:
        raise Unreadable(f"the address of {identifier!r} is neither 4 nor 16 bytes long")
    length = _number(prefix.prefix_length, "prefix length", -1, 8 * len(raw))
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
    texts = tuple(_text(value, what) for value in values)
    for text in texts:
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError as error:
            raise Unreadable(f"{text[:80]!r} is not a {what}") from error
    return texts


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise Unreadable(f"{what} is not text")
    if len(value) > LONGEST_TEXT:
        raise Unreadable(f"{what} is longer than {LONGEST_TEXT} characters")
    return value


def _smbios(value: object, what: str) -> str:
    return _text(_bytes(value, what).decode(errors="replace"), what)


def _bytes(value: object, what: str) -> bytes:
    if not isinstance(value, bytes):
        raise Unreadable(f"{what} is not made of bytes")
    return value


def _number(value: object, what: str, low: int, high: int) -> int:
    if not isinstance(value, int) or not low <= value <= high:
        raise Unreadable(f"{what} is not a number between {low} and {high}")
    return value


def _flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise Unreadable(f"{what} is neither true nor false")
    return value
