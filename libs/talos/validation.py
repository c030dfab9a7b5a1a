"""What a machine sent, held to what it may be: everything else is Unreadable."""

from typing import Final

from libs.talos.cosi_messages import Resource, decode_response
from libs.talos.proto.strict import Malformed
from libs.talos.resources import ResourceRef

MAX_TEXT_CHARS: Final = 1024


class InvalidResponse(Exception):
    """What no Talos would send; the text says what was wrong with it."""


def parse_resource(answer: bytes) -> Resource:
    """The resource in a GetResponse or ListResponse. Raises Unreadable, as all here."""
    try:
        return decode_response(answer)
    except Malformed as error:
        raise InvalidResponse(str(error)) from error


def require_id(resource: Resource, ref: ResourceRef) -> str:
    """The id, once the resource is known to be what was asked for."""
    told = (
        require_text(resource.namespace, "namespace"),
        require_text(resource.type, "type"),
        require_text(resource.id, "id"),
    )
    if told[:2] != (ref.namespace, ref.type) or told[2] != (ref.id or told[2]) or not told[2]:
        wanted = f"{ref.namespace}/{ref.type}/{ref.id or '*'}"
        raise InvalidResponse(f"asked for {wanted}, answered with {'/'.join(told)[:200]!r}")
    return told[2]


def require_text(value: object, what: str) -> str:
    """A text of bounded length."""
    if not isinstance(value, str):
        raise InvalidResponse(f"{what} is not text")
    if len(value) > MAX_TEXT_CHARS:
        raise InvalidResponse(f"{what} is longer than {MAX_TEXT_CHARS} characters")
    return value


def require_smbios_text(value: object, what: str) -> str:
    """A text as a board maker left it; bytes that are not UTF-8 become the replacement character."""
    return require_text(require_bytes(value, what).decode(errors="replace"), what)


def require_bytes(value: object, what: str) -> bytes:
    """Bytes."""
    if not isinstance(value, bytes):
        raise InvalidResponse(f"{what} is not made of bytes")
    return value


def require_number(value: object, what: str, low: int, high: int) -> int:
    """A number between those two, both included."""
    if not isinstance(value, int) or not low <= value <= high:
        raise InvalidResponse(f"{what} is not a number between {low} and {high}")
    return value


def require_bool(value: object, what: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise InvalidResponse(f"{what} is neither true nor false")
    return value
