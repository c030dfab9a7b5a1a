"""Reading what the API server sends: lists, single objects, and what to do with one that nobody can read."""

from collections.abc import Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from libs.common.contract.node import ObjectMeta
from libs.common.kube.errors import ServerError

PAGE_SIZE: Final = 500  # decoding a page of that many Nodes holds up the event loop for some 30 ms


class KubeObject(Protocol):
    """Whatever has the metadata that we read."""

    @property
    def metadata(self) -> ObjectMeta: ...


Item = TypeVar("Item", bound=KubeObject)
Answer = TypeVar("Answer")


class Resource(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """A kind of object: Kubernetes' plural, its collection's path, and what we read of one.

    `query` goes with every list and watch of it, such as a fieldSelector: what it leaves out is not there.
    `kept` makes of each object, as soon as it is read, what is worth its memory.
    """

    plural: str
    path: str
    item: type[Item]
    query: Mapping[str, str] = {}
    page_size: int = PAGE_SIZE
    transform: Callable[[Item], Item] = lambda item: item


def select_by_name(resource: Resource[Item], name: str) -> Resource[Item]:
    """The same kind, of which a list or a watch has the object of that name only."""
    chosen = (resource.query.get("fieldSelector", ""), f"metadata.name={name}")
    selector = ",".join(part for part in chosen if part)
    return msgspec.structs.replace(resource, query={**resource.query, "fieldSelector": selector})


class Page(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """Part of a list; all pages of one list are of one resourceVersion."""

    items: tuple[Item, ...]
    resource_version: str
    continue_token: str = ""


class UnreadableObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object of a list or a watch that is not what its kind promises, and why."""

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
    """The answer as `kind`. Raises ServerError if it is something else."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ServerError(f"the answer cannot be read: {error}", request=str(request)) from error


def read_page(
    body: bytes, resource: Resource[Item], request: object, on_unreadable: Callable[[UnreadableObject], None]
) -> Page[Item]:
    """One page of a list, without the objects that cannot be read. Raises ServerError if it is no list."""
    raw = decode_answer(body, _RawList, request)
    if not raw.metadata.resource_version:  # JSON that is no list reads like an empty one: all would have gone
        raise ServerError("the answer is no list: it has no resourceVersion", request=str(request))
    readable = (decode_object(item, resource, on_unreadable) for item in raw.items or ())
    return Page(
        items=tuple(item for item in readable if item is not None),
        resource_version=raw.metadata.resource_version,
        continue_token=raw.metadata.continue_token,
    )


def decode_object(
    raw: bytes | msgspec.Raw, resource: Resource[Item], on_unreadable: Callable[[UnreadableObject], None]
) -> Item | None:
    """The object, or None after telling that it cannot be read: one bad object must not blind us."""
    try:
        return resource.transform(msgspec.json.decode(raw, type=resource.item))
    except (msgspec.DecodeError, RecursionError) as error:
        on_unreadable(UnreadableObject(resource=resource.plural, name=_name_of(raw), reason=str(error)))
        return None


def _name_of(raw: bytes | msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(raw, type=_Named).metadata.name
    except (msgspec.DecodeError, RecursionError):
        return ""
