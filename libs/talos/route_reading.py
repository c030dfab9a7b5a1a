"""Reads gateways from RouteStatuses, of which a CNI may create one per node or pod."""

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Final

from libs.talos.proto.strict import Malformed, fields
from libs.talos.resources import INVENTORY
from libs.talos.validation import InvalidResponse, parse_resource, require_id

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
