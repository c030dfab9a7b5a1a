"""Reads the inventory of a machine. The specs are small, so this module decodes them itself."""

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from libs.common.contract.machine import Inventory, MachineFault, Processors
from libs.talos.cosi_messages import Resource
from libs.talos.proto.strict import InvalidResponse, fields, require_bytes
from libs.talos.resources import INVENTORY, Part
from libs.talos.validation import (
    require_number,
    require_smbios_text,
    require_text,
)

MAX_GATEWAYS: Final = 1024  # facts must fit into a message
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
    fields = [each for one in parts for each in msgspec.structs.asdict(one).items()]
    return Inventory(**{name: value for name, value in fields if value is not None})


def read_part(part: Part, resources: Sequence[Resource]) -> Inventory:
    """Return an inventory with only that part. No resources = the machine does not have it.

    Raises InvalidResponse.
    """
    specs = [resource.spec for resource in resources]
    return Inventory(**{INVENTORY[part].inventory_field: _READERS[part](specs)})


def _version(specs: Sequence[bytes]) -> str:
    """VersionSpec: 1 version."""
    return _text(_message(specs[0]), 1, "version") if specs else ""


def _machine_type(specs: Sequence[bytes]) -> str:
    """MachineTypeSpec: 1 machine_type. An unknown type is ""."""
    return _MACHINE_TYPES.get(_number(_message(specs[0]), 1, "machine_type"), "") if specs else ""


def _extensions(specs: Sequence[bytes]) -> dict[str, str]:
    """extensions.Layer: 2 metadata with 1 name and 2 version."""
    layers = [_message(_message(spec).get(2, b"")) for spec in specs]
    found = {_text(layer, 1, "name"): _text(layer, 2, "version") for layer in layers}
    found.pop("", None)
    if sum(len(name) + len(version) for name, version in found.items()) > MAX_EXTENSION_CHARS:
        raise InvalidResponse(f"more than {MAX_EXTENSION_CHARS} characters of extensions")
    return found


def _processors(specs: Sequence[bytes]) -> Processors:
    """ProcessorSpec: 2 manufacturer, 3 product_name, 5 boot_speed, 10 core_count, 11 core_enabled and
    12 thread_count.

    A socket without a processor has neither cores nor threads nor speed.
    """
    sockets = map(_message, specs)
    used = [spec for spec in sockets if any(_number(spec, field, "count") for field in (5, 10, 11, 12))]
    if not used:
        return Processors()
    return Processors(
        manufacturer=require_smbios_text(_bytes(used[0], 2, "manufacturer"), "manufacturer"),
        model=require_smbios_text(_bytes(used[0], 3, "product_name"), "product_name"),
        sockets=len(used),
        cores=sum(_number(spec, 11, "core_enabled") or _number(spec, 10, "core_count") for spec in used),
        threads=sum(_number(spec, 12, "thread_count") for spec in used),
    )


def _memory_mib(specs: Sequence[bytes]) -> int:
    """MemoryModuleSpec: 1 size."""
    return sum(_number(_message(spec), 1, "size") for spec in specs)


def _gateways(specs: Sequence[bytes]) -> tuple[str, ...]:
    """The addresses of all gateways, sorted and without duplicates and link-local ones (fe80::1).

    A CNI may create a route per node or pod.
    """
    found = {address for spec in specs for address in _iter_gateways(spec)}
    if len(found) > MAX_GATEWAYS:
        raise InvalidResponse(f"more than {MAX_GATEWAYS} gateways")
    return tuple(str(each) for each in sorted(found, key=lambda each: (each.version, int(each))))


def _iter_gateways(spec: bytes) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """RouteStatusSpec: 4 gateway; 14 next_hops with 1 gateway (Talos 1.14). NetIP: 1 ip."""
    for number, value in fields(spec):
        if number not in (4, 14):
            continue
        gateway = value if number == 4 else _message(value).get(1, b"")
        address = _parse_address(_bytes(_message(gateway), 1, "gateway"))
        if address is not None and not (address.is_unspecified or address.is_link_local):
            yield address


def _parse_address(raw: bytes) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse Go's binary form: empty = none, 4 bytes, or 16 bytes with an optional zone."""
    if not raw:
        return None
    if len(raw) == 4:
        return ipaddress.IPv4Address(raw)
    if len(raw) < 16:
        raise InvalidResponse("a gateway is neither 4 nor 16 bytes long")
    address = ipaddress.IPv6Address(raw[:16])
    return address.ipv4_mapped or address


_READERS: Final[Mapping[Part, Callable[[Sequence[bytes]], Any]]] = {
    "Version": _version,
    "MachineType": _machine_type,
    "ExtensionStatus": _extensions,
    "Processor": _processors,
    "MemoryModule": _memory_mib,
    "RouteStatus": _gateways,
}


def _message(value: int | bytes) -> Spec:
    return dict(fields(require_bytes(value, "a message")))


def _text(spec: Spec, field: int, what: str) -> str:
    try:
        return require_text(_bytes(spec, field, what).decode(), what)
    except UnicodeDecodeError as error:
        raise InvalidResponse(f"{what} is not text") from error


def _bytes(spec: Spec, field: int, what: str) -> bytes:
    return require_bytes(spec.get(field, b""), what)


def _number(spec: Spec, field: int, what: str) -> int:
    return require_number(spec.get(field, 0), what, 0, _LARGEST)
