"""Reads the inventory of a machine. The specs are small, so this module decodes them itself."""

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from libs.common.contract.machine import Inventory, MachineFault, Processors
from libs.talos.proto.strict import Malformed, fields
from libs.talos.resources import INVENTORY, Part, ResourceRef
from libs.talos.validation import (
    InvalidResponse,
    parse_resource,
    require_id,
    require_number,
    require_smbios_text,
    require_text,
)

MAX_RESOURCES: Final = 512  # per type
MAX_EXTENSION_CHARS: Final = 32 * 1024  # names and versions together: facts must fit into a message
_LARGEST: Final = 2**32 - 1
_MACHINE_TYPES: Final = {1: "controlplane", 2: "controlplane", 3: "worker"}  # 1 is init

Spec = dict[int, int | bytes]  # field number -> its last value


class InventoryResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The inventory of a machine, and the fault of each missing part."""

    inventory: Inventory = Inventory()
    faults: Mapping[Part, MachineFault] = {}


def merge_inventories(parts: Iterable[Inventory]) -> Inventory:
    """Merge parts into one inventory."""
    told = [each for one in parts for each in msgspec.structs.asdict(one).items()]
    return Inventory(**{name: value for name, value in told if value is not None})


def read_part(part: Part, answers: Sequence[bytes]) -> Inventory:
    """Return an inventory with only that part. No answers = the machine does not have it.

    Raises InvalidResponse.
    """
    if part == "RouteStatus":
        return Inventory(gateways=read_gateways(answers))
    ref = INVENTORY[part]
    return Inventory(**{ref.inventory_field: _READERS[part](_specs(ref, answers))})


def _version(specs: Sequence[Spec]) -> str:
    """VersionSpec: 1 version."""
    return _text(specs[0], 1, "version") if specs else ""


def _machine_type(specs: Sequence[Spec]) -> str:
    """MachineTypeSpec: 1 machine_type. An unknown type is ""."""
    return _MACHINE_TYPES.get(_number(specs[0], 1, "machine_type"), "") if specs else ""


def _extensions(specs: Sequence[Spec]) -> dict[str, str]:
    """extensions.Layer: 2 metadata with 1 name and 2 version."""
    found = {}
    for spec in specs:
        metadata = _spec(_bytes(spec, 2, "metadata"))
        found[_text(metadata, 1, "name")] = _text(metadata, 2, "version")
    found.pop("", None)
    if sum(len(name) + len(version) for name, version in found.items()) > MAX_EXTENSION_CHARS:
        raise InvalidResponse(f"more than {MAX_EXTENSION_CHARS} characters of extensions")
    return found


def _processors(specs: Sequence[Spec]) -> Processors:
    """ProcessorSpec: 2 manufacturer, 3 product_name, 5 boot_speed, 10 core_count, 11 core_enabled and
    12 thread_count.

    A socket without a processor has neither cores nor threads nor speed.
    """
    used = [spec for spec in specs if any(_number(spec, field, "count") for field in (5, 10, 11, 12))]
    if not used:
        return Processors()
    return Processors(
        manufacturer=require_smbios_text(_bytes(used[0], 2, "manufacturer"), "manufacturer"),
        model=require_smbios_text(_bytes(used[0], 3, "product_name"), "product_name"),
        sockets=len(used),
        cores=sum(_number(spec, 11, "core_enabled") or _number(spec, 10, "core_count") for spec in used),
        threads=sum(_number(spec, 12, "thread_count") for spec in used),
    )


def _memory_mib(specs: Sequence[Spec]) -> int:
    """MemoryModuleSpec: 1 size."""
    return sum(_number(spec, 1, "size") for spec in specs)


_READERS: Final[Mapping[Part, Callable[[Sequence[Spec]], Any]]] = {
    "Version": _version,
    "MachineType": _machine_type,
    "ExtensionStatus": _extensions,
    "Processor": _processors,
    "MemoryModule": _memory_mib,
}


def _specs(ref: ResourceRef, answers: Sequence[bytes]) -> list[Spec]:
    """Return the specs of the requested resources, sorted by id."""
    if len(answers) > (1 if ref.id else MAX_RESOURCES):
        raise InvalidResponse(f"{len(answers)} answers for {ref.step}")
    found = {}
    for answer in answers:
        resource = parse_resource(answer)
        found[require_id(resource, ref)] = _spec(resource.spec)
    if len(found) < len(answers):
        raise InvalidResponse("two resources with the same id")
    return [found[identifier] for identifier in sorted(found)]


def _spec(data: bytes) -> Spec:
    try:
        return dict(fields(data))
    except Malformed as error:
        raise InvalidResponse(str(error)) from error


def _text(spec: Spec, field: int, what: str) -> str:
    try:
        return require_text(_bytes(spec, field, what).decode(), what)
    except UnicodeDecodeError as error:
        raise InvalidResponse(f"{what} is not text") from error


def _bytes(spec: Spec, field: int, what: str) -> bytes:
    value = spec.get(field, b"")
    if not isinstance(value, bytes):
        raise InvalidResponse(f"{what} is not made of bytes")
    return value


def _number(spec: Spec, field: int, what: str) -> int:
    return require_number(spec.get(field, 0), what, 0, _LARGEST)


MAX_ROUTES: Final = 8192
MAX_GATEWAYS: Final = 1024  # facts must fit into a message
_GATEWAY, _NEXT_HOP, _GATEWAY_OF_HOP, _IP = 4, 14, 1, 1  # field numbers; next hops since Talos 1.14


def read_gateways(answers: Sequence[bytes]) -> tuple[str, ...]:
    """Return the addresses of all gateways, sorted and without duplicates and link-local ones (fe80::1).

    Raises InvalidResponse.
    """
    if len(answers) > MAX_ROUTES:
        raise InvalidResponse(f"more than {MAX_ROUTES} routes")
    seen: set[str] = set()
    found: set[ipaddress.IPv4Address | ipaddress.IPv6Address] = set()
    for answer in answers:
        resource = parse_resource(answer)
        identifier = require_id(resource, INVENTORY["RouteStatus"])
        if identifier in seen:
            raise InvalidResponse(f"two resources with the same id {identifier[:80]!r}")
        seen.add(identifier)
        found.update(_iter_gateways(resource.spec))
    if len(found) > MAX_GATEWAYS:
        raise InvalidResponse(f"more than {MAX_GATEWAYS} gateways")
    return tuple(str(each) for each in sorted(found, key=lambda each: (each.version, int(each))))


def _iter_gateways(spec: bytes) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    for number, value in _fields(spec):
        if number == _GATEWAY:
            raw = _last(value, _IP)
        elif number == _NEXT_HOP:
            raw = _last(_last(value, _GATEWAY_OF_HOP), _IP)
        else:
            continue
        address = _address(raw)
        if address is not None and not (address.is_unspecified or address.is_link_local):
            yield address


def _address(raw: bytes) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse Go's binary form: empty = none, 4 bytes, or 16 bytes with an optional zone."""
    if not raw:
        return None
    if len(raw) == 4:
        return ipaddress.IPv4Address(raw)
    if len(raw) < 16:
        raise InvalidResponse("a gateway is neither 4 nor 16 bytes long")
    address = ipaddress.IPv6Address(raw[:16])
    return address.ipv4_mapped or address


def _last(message: object, field: int) -> bytes:
    """Return the last value of that field of a message, empty without one."""
    found = b""
    for number, value in _fields(message):
        if number == field:
            if not isinstance(value, bytes):
                raise InvalidResponse("a gateway is not made of bytes")
            found = value
    return found


def _fields(message: object) -> Iterator[tuple[int, int | bytes]]:
    if not isinstance(message, bytes):
        raise InvalidResponse("a gateway is not made of bytes")
    try:
        yield from fields(message)
    except Malformed as error:
        raise InvalidResponse(str(error)) from error
