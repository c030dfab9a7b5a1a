"""What can happen to objects that are listed and watched, and how a watch says it."""

from collections.abc import Callable
from typing import Final, Generic

import msgspec

from libs.common.kube.errors import Status, error_from_status
from libs.common.kube.objects import Item, Resource, UnreadableObject, decode_object
from libs.common.kube.transport import Request


class ListSnapshot(msgspec.Struct, Generic[Item], frozen=True):
    """Everything there is as of this version; what is not in it is gone, whether or not a Deleted came.

    `unreadable` names what is there but cannot be read: it is not gone.
    """

    items: tuple[Item, ...]
    resource_version: str
    unreadable: tuple[str, ...] = ()


class Changed(msgspec.Struct, Generic[Item], frozen=True):
    """The object is like this now; added or modified makes no difference."""

    item: Item


class Deleted(msgspec.Struct, Generic[Item], frozen=True):
    """The object is gone; its last state."""

    item: Item


class Bookmark(msgspec.Struct, frozen=True):
    """Everything up to this version has been told."""

    resource_version: str


WatchEvent = ListSnapshot[Item] | Changed[Item] | Deleted[Item] | Bookmark


class ListAgain(Exception):
    """What we know of the version is worth nothing: it was compacted, or the watch said something odd."""


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
    """What a line of a watch says; None if its object cannot be read, which `on_unreadable` then hears of.

    Raises KubeError if it is the server's refusal to go on, ListAgain if only a list tells what is left.
    """
    try:
        event = _EVENT.decode(line)
        if event.type == "BOOKMARK":
            return Bookmark(msgspec.json.decode(event.object, type=_BookmarkObject).metadata.resource_version)
        if event.type == "ERROR":
            told = msgspec.json.decode(event.object, type=Status)
            raise error_from_status(told, told.code, request=str(request))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ListAgain(f"the watch said something unreadable: {error}") from error
    item = decode_object(event.object, resource, on_unreadable)
    if event.type != "DELETED":
        return None if item is None else Changed(item)
    if item is None:
        raise ListAgain("an object that cannot be read was deleted: only a list tells which are left")
    return Deleted(item)


def resource_version_of(event: Changed[Item] | Deleted[Item] | Bookmark) -> str:
    """Up to which version everything has been told with that."""
    if isinstance(event, Bookmark):
        return event.resource_version
    return event.item.metadata.resource_version
