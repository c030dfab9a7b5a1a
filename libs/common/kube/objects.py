"""The kinds of objects, and how to parse lists and objects; reports objects that cannot be parsed."""

import re
from collections.abc import Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from libs.common.contract.node import ObjectMeta
from libs.common.json_errors import JSON_ERRORS
from libs.common.kube.errors import ServerError
from libs.common.kube.request import path_segment

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
    is_namespaced: bool = False  # its objects are known by `<namespace>.<name>`
    transform: Callable[[Item], Item] = lambda item: item


def namespaced_path(namespace: str, plural: str, *, api: str = "/api/v1") -> str:
    """Return the path of the collection in a namespace. Raises Invalid without a namespace."""
    return f"{api}/namespaces/{path_segment(namespace)}/{plural}"


def namespaced_resource(
    plural: str, item: type[Item], namespace: str, labels: Mapping[str, str], *, page_size: int
) -> Resource[Item]:
    """Return a kind of the core API, restricted to the objects of a namespace with all these labels."""
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return Resource(
        plural=plural,
        path=namespaced_path(namespace, plural),
        item=item,
        query={"labelSelector": selector} if selector else {},
        page_size=page_size,
    )


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
    namespace: str = ""


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
        name = _name_of(raw, resource)
        on_unreadable(UnreadableObject(resource=resource.plural, name=name, reason=str(error)))
        return None


def _name_of(raw: bytes | msgspec.Raw, resource: Resource[Item]) -> str:
    try:
        metadata = msgspec.json.decode(raw, type=_Named).metadata
    except JSON_ERRORS:
        return ""
    return f"{metadata.namespace}.{metadata.name}" if resource.is_namespaced else metadata.name


def select_by_name(resource: Resource[Item], name: str) -> Resource[Item]:
    """Return the kind restricted to one name, of a kind in namespaces `<namespace>.<name>`."""
    terms = [resource.query["fieldSelector"]] if "fieldSelector" in resource.query else []
    if resource.is_namespaced:
        namespace, _, name = name.partition(".")
        terms.append(f"metadata.namespace={namespace}")
    escaped = re.sub(r"([\\,=])", r"\\\1", name)  # as fields.EscapeValue: names of CSRs may contain them
    selector = ",".join((*terms, f"metadata.name={escaped}"))
    return msgspec.structs.replace(resource, query={**resource.query, "fieldSelector": selector})


# ---- ConfigMaps


class ConfigMap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ConfigMap as the API server encodes it."""

    metadata: ObjectMeta
    data: dict[str, str] = {}


def config_map_resource(namespace: str, labels: Mapping[str, str]) -> Resource[ConfigMap]:
    """Return the kind restricted to a namespace and labels. One object may have 1 MiB, so a page 20 MiB."""
    return namespaced_resource("configmaps", ConfigMap, namespace, labels, page_size=20)


def encode_config_map(config_map: ConfigMap) -> bytes:
    """Return the body of a create or an update."""
    head = {"apiVersion": "v1", "kind": "ConfigMap"}
    return msgspec.json.encode(head | msgspec.to_builtins(config_map))


# ---- ServiceCIDRs (Kubernetes 1.33): ranges of Service addresses that were added to a running cluster


class ServiceCidrSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The ranges: one, or one of each family. Immutable."""

    cidrs: tuple[str, ...] = ()


class ServiceCidr(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a ServiceCIDR that this client reads.

    It counts until it is gone. While it terminates, Services still have addresses of its ranges (KEP-1880).
    """

    metadata: ObjectMeta
    spec: ServiceCidrSpec = ServiceCidrSpec()

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name


# Kubernetes serves v1 since 1.33. Earlier versions serve a beta API that is off by default.
SERVICE_CIDRS: Final[Resource[ServiceCidr]] = Resource(
    plural="servicecidrs", path="/apis/networking.k8s.io/v1/servicecidrs", item=ServiceCidr
)
