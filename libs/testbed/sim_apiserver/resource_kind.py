"""The description of a kind, and the rules of metadata. Objects are JSON without kind and apiVersion."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple, TypedDict

import msgspec

from libs.testbed.sim_apiserver.refusals import Cause, ResourceReference, invalid_value, too_long_value

Document = dict[str, Any]

# metav1.Time; other formats of RFC 3339 are not simulated.
Time = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
MicroTime = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")]

_NAME_PART: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE: Final = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_ANNOTATIONS_LIMIT: Final = 256 * 1024  # bytes of all keys and values


class Metadata(TypedDict, total=False):
    """The types of metadata."""

    name: str
    generateName: str
    namespace: str
    uid: str
    resourceVersion: str
    creationTimestamp: Time | None
    labels: dict[str, str]
    annotations: dict[str, str]
    finalizers: list[str]


class AnyObject(TypedDict, total=False):
    """The schema of a kind whose parts are not checked."""

    metadata: Metadata
    spec: Document
    status: Document


class Caller(NamedTuple):
    """The user and time (metav1.Time) of a write."""

    user: str
    groups: tuple[str, ...]
    now: str


def validate_metadata(new: Document, old: Document | None) -> list[Cause]:
    """Return the causes of an object with invalid metadata."""
    meta, causes = new["metadata"], list[Cause]()
    annotations = meta.get("annotations", {})
    if old is None and not _is_subdomain(meta["name"]):
        causes.append(
            invalid_value(meta["name"], "a lowercase RFC 1123 subdomain is needed", "metadata.name")
        )
    if old is not None and meta["uid"] != old["metadata"]["uid"]:
        causes.append(invalid_value(meta["uid"], "field is immutable", "metadata.uid"))
    for key, value in meta.get("labels", {}).items():
        causes += validate_key(key, "metadata.labels") + validate_label_value(value, "metadata.labels")
    for key in annotations:
        causes += validate_key(key.lower(), "metadata.annotations")
    if sum(len(k.encode()) + len(v.encode()) for k, v in annotations.items()) > _ANNOTATIONS_LIMIT:
        causes.append(too_long_value(_ANNOTATIONS_LIMIT, "metadata.annotations"))
    return causes


class ResourceKind(msgspec.Struct, frozen=True):
    """A kind of object: its path, the types of its known fields, and its rules.

    `on_create` applies admission and defaults to a new object. `on_update(old, new, subresource, caller)`
    returns the state to store. `validate(new, old)` returns causes; old is None for a new object. None of
    them changes its arguments.
    """

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    schema: Any = AnyObject
    short_names: tuple[str, ...] = ()  # for kubectl
    is_namespaced: bool = False
    is_stored: bool = True  # False: a create is answered and not stored
    subresources: frozenset[str] = frozenset()
    supports_strategic_patch: bool = False
    requires_version: bool = False  # an update must name the resourceVersion; it creates a missing object
    field_selectors: tuple[str, ...] = ("metadata.name",)
    on_create: Callable[[Document, Caller], Document] = lambda new, caller: new
    on_update: Callable[[Document, Document, str, Caller], Document] = lambda old, new, subresource, caller: (
        new
    )
    validate: Callable[[Document, Document | None], list[Cause]] = validate_metadata

    @property
    def qualified_name(self) -> str:
        """The name in validation messages: "Node", "Lease.coordination.k8s.io"."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def api_version(self) -> str:
        """The apiVersion of the objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def make_reference(self, name: str = "") -> ResourceReference:
        """Return the reference for a rejection."""
        return ResourceReference(self.plural, self.group, name)


def omit_empty(document: Document) -> Document:
    """Return the object without empty values directly in metadata, spec and status, as the server does."""
    result = dict(document)
    for part in ("metadata", "spec", "status"):
        if part in result:
            result[part] = {
                key: value
                for key, value in result[part].items()
                if not (value is None or value is False or value in ({}, []))
                and not (part == "metadata" and value == "")
            }
    return result


def update_part(old: Document, new: Document, subresource: str, caller: Caller) -> Document:
    """Apply an update: the object's own path keeps the status, its status path the spec."""
    kept = "spec" if subresource == "status" else "status"
    return {**new, kept: old.get(kept, {})}


def validate_key(key: str, field: str) -> list[Cause]:
    """Return a cause unless the key is a qualified name: optional DNS prefix and slash, 63 characters."""
    prefix, slash, name = key.rpartition("/")
    if slash and not _is_subdomain(prefix):
        return [invalid_value(key, "prefix part must be a lowercase RFC 1123 subdomain", field)]
    if len(name) > 63 or not _NAME_PART.fullmatch(name):
        why = "name part must consist of at most 63 alphanumeric characters, -_."
        return [invalid_value(key, why, field)]
    return []


def validate_label_value(value: str, field: str) -> list[Cause]:
    """Return a cause unless the value is empty or has at most 63 allowed characters."""
    if len(value) <= 63 and _LABEL_VALUE.fullmatch(value):
        return []
    why = "a valid label must be empty or at most 63 alphanumeric characters, -_."
    return [invalid_value(value, why, field)]


def _is_subdomain(name: str) -> bool:
    return len(name) <= 253 and _SUBDOMAIN.fullmatch(name) is not None
