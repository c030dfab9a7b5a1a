"""What a machine sent, held to what it may be: everything else is Unreadable."""

from typing import Final

from services.metadata.talos_api.envelopes import Resource, response
from services.metadata.talos_api.proto.strict import Malformed
from services.metadata.talos_api.resources import Asked

LONGEST_TEXT: Final = 1024


class Unreadable(Exception):
    """What no Talos would send; the text says what was wrong with it."""


def resource_in(answer: bytes) -> Resource:
    """The resource in a GetResponse or ListResponse. Raises Unreadable, as all here."""
    try:
        return response(answer)
    except Malformed as error:
        raise Unreadable(str(error)) from error


def checked_id(resource: Resource, asked: Asked) -> str:
    """The id, once the resource is known to be what was asked for."""
    told = (
        text(resource.namespace, "namespace"),
        text(resource.type, "type"),
        text(resource.id, "id"),
    )
    if told[:2] != (asked.namespace, asked.type) or told[2] != (asked.id or told[2]) or not told[2]:
        wanted = f"{asked.namespace}/{asked.type}/{asked.id or '*'}"
        raise Unreadable(f"asked for {wanted}, answered with {'/'.join(told)[:200]!r}")
    return told[2]


def text(value: object, what: str) -> str:
    """A text of bounded length."""
    if not isinstance(value, str):
        raise Unreadable(f"{what} is not text")
    if len(value) > LONGEST_TEXT:
        raise Unreadable(f"{what} is longer than {LONGEST_TEXT} characters")
    return value


def smbios(value: object, what: str) -> str:
    """A text as a board maker left it; bytes that are not UTF-8 become the replacement character."""
    return text(raw_bytes(value, what).decode(errors="replace"), what)


def raw_bytes(value: object, what: str) -> bytes:
    """Bytes."""
    if not isinstance(value, bytes):
        raise Unreadable(f"{what} is not made of bytes")
    return value


def number(value: object, what: str, low: int, high: int) -> int:
    """A number between those two, both included."""
    if not isinstance(value, int) or not low <= value <= high:
        raise Unreadable(f"{what} is not a number between {low} and {high}")
    return value


def flag(value: object, what: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise Unreadable(f"{what} is neither true nor false")
    return value
