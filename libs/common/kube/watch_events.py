"""The events of a list and a watch, and how to decode them."""

from collections.abc import Callable
from typing import Final, Generic

import msgspec

from libs.common.json_errors import JSON_ERRORS
from libs.common.kube.errors import Status, error_from_status
from libs.common.kube.objects import Item, Resource, UnreadableObject, decode_object
from libs.common.kube.request import Request


class ListSnapshot(msgspec.Struct, Generic[Item], frozen=True):
    """All objects as of this version; any other object is gone, with or without a Deleted event.

    `unreadable` has the names of objects that exist but cannot be parsed.
    """

    items: tuple[Item, ...]
    resource_version: str
    unreadable: tuple[str, ...] = ()


class Changed(msgspec.Struct, Generic[Item], frozen=True):
    """An object was added or modified; `item` is its current state."""

    item: Item


class Deleted(msgspec.Struct, Generic[Item], frozen=True):
    """An object was deleted; `item` is its last state."""

    item: Item


class Bookmark(msgspec.Struct, frozen=True):
    """The watch has sent all changes up to this version."""

    resource_version: str


WatchEvent = ListSnapshot[Item] | Changed[Item] | Deleted[Item] | Bookmark


class ListAgain(Exception):
    """The known resourceVersion is not usable: it was compacted, or the watch sent something unexpected."""


class _RawWatchEvent(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _BookmarkMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str


class _BookmarkObject(msgspec.Struct, frozen=True):
    metadata: _BookmarkMeta


_EVENT: Final = msgspec.json.Decoder(_RawWatchEvent)


def decode_watch_event(
    line: bytes,
    resource: Resource[Item],
    request: Request,
    on_unreadable: Callable[[UnreadableObject], None],
) -> Changed[Item] | Deleted[Item] | Bookmark | None:
    """Decode a line of a watch; report an object that cannot be parsed to `on_unreadable` and return None.

    Raises KubeError if the server ends the watch with an error, ListAgain if a new list is necessary.
    """
    try:
        event = _EVENT.decode(line)
        if event.type == "BOOKMARK":
            return Bookmark(msgspec.json.decode(event.object, type=_BookmarkObject).metadata.resource_version)
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=Status)
            raise error_from_status(status, status.code, request=str(request))
    except JSON_ERRORS as error:
        raise ListAgain(f"the watch sent an invalid line: {error}") from error
    item = decode_object(event.object, resource, on_unreadable)
    if event.type != "DELETED":
        return None if item is None else Changed(item)
    if item is None:
        raise ListAgain("an unreadable object was deleted: a list is needed to find out which")
    return Deleted(item)


def resource_version_of(event: Changed[Item] | Deleted[Item] | Bookmark) -> str:
    """Return the version up to which the watch has sent all changes, including this event."""
    if isinstance(event, Bookmark):
        return event.resource_version
    return event.item.metadata.resource_version
