"""Parses lists and objects of the API server, and reports objects that cannot be parsed."""

from collections.abc import Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from libs.common.contract.node import ObjectMeta
from libs.common.json_errors import JSON_ERRORS
from libs.common.kube.errors import ServerError

PAGE_SIZE: Final = 500  # decoding such a page of Nodes blocks the event loop for about 30 ms


class KubeObject(Protocol):
    """An object with metadata."""

    @property
    def metadata(self) -> ObjectMeta: ...


Item = TypeVar("Item", bound=KubeObject)
Answer = TypeVar("Answer")


class Resource(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """A kind of object: its plural, the path of its collection, and the type of an item.

    `query`, such as a fieldSelector, is part of every list and watch: objects that it excludes do not exist
    for callers. `transform` reduces each parsed object at once, to save memory.
    """

    plural: str
    path: str
    item: type[Item]
    query: Mapping[str, str] = {}
    page_size: int = PAGE_SIZE
    transform: Callable[[Item], Item] = lambda item: item


def namespaced_resource(
    plural: str, item: type[Item], namespace: str, labels: Mapping[str, str], *, page_size: int
) -> Resource[Item]:
    """Return a kind of the core API, restricted to the objects of a namespace with all these labels."""
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return Resource(
        plural=plural,
        path=f"/api/v1/namespaces/{quote(namespace, safe='')}/{plural}",
        item=item,
        query={"labelSelector": selector} if selector else {},
        page_size=page_size,
    )


def select_by_name(resource: Resource[Item], name: str) -> Resource[Item]:
    """Return the same kind, restricted to the object with that name."""
    chosen = (resource.query.get("fieldSelector", ""), f"metadata.name={name}")
    selector = ",".join(part for part in chosen if part)
    return msgspec.structs.replace(resource, query={**resource.query, "fieldSelector": selector})


class Page(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """Part of a list; all pages of one list have the same resourceVersion."""

    items: tuple[Item, ...]
    resource_version: str
    continue_token: str = ""


class UnreadableObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object of a list or a watch that does not match the schema of its kind, and the reason."""

    resource: str
    name: str
    reason: str


class _ListMeta(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    resource_version: str = ""
    continue_token: str = msgspec.field(name="continue", default="")


class _RawList(msgspec.Struct, frozen=True):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _NamedMeta(msgspec.Struct, frozen=True):
    name: str


class _Named(msgspec.Struct, frozen=True):
    metadata: _NamedMeta


def decode_answer(body: bytes, kind: type[Answer], request: object) -> Answer:
    """Parse a response as `kind`. Raises ServerError if it is something else."""
    try:
        return msgspec.json.decode(body, type=kind)
    except JSON_ERRORS as error:
        raise ServerError(f"invalid response: {error}", request=str(request)) from error


def read_page(
    body: bytes, resource: Resource[Item], request: object, on_unreadable: Callable[[UnreadableObject], None]
) -> Page[Item]:
    """Parse one page of a list, without unreadable objects. Raises ServerError if it is not a list."""
    raw = decode_answer(body, _RawList, request)
    if not raw.metadata.resource_version:  # else other JSON looks like an empty list: all objects gone
        raise ServerError("the response is not a list: no resourceVersion", request=str(request))
    readable = (decode_object(item, resource, on_unreadable) for item in raw.items or ())
    return Page(
        items=tuple(item for item in readable if item is not None),
        resource_version=raw.metadata.resource_version,
        continue_token=raw.metadata.continue_token,
    )


def decode_object(
    raw: bytes | msgspec.Raw, resource: Resource[Item], on_unreadable: Callable[[UnreadableObject], None]
) -> Item | None:
    """Parse an object; report an unreadable one and return None, so that it does not stop the others."""
    try:
        return resource.transform(msgspec.json.decode(raw, type=resource.item))
    except JSON_ERRORS as error:
        on_unreadable(UnreadableObject(resource=resource.plural, name=_name_of(raw), reason=str(error)))
        return None


def _name_of(raw: bytes | msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(raw, type=_Named).metadata.name
    except JSON_ERRORS:
        return ""
