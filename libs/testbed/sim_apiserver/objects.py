"""Metadata of objects with its validation, and the description of a kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from libs.testbed.sim_apiserver.refusals import Cause, ResourceReference, invalid_value, too_long_value

# metav1.Time; other formats of RFC 3339 are not simulated.
Time = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
MicroTime = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")]

_NAME_PART: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE: Final = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_ANNOTATIONS_LIMIT: Final = 256 * 1024  # bytes of all keys and values


class Meta(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """metadata, without finalizers, owners and managed fields, which are not simulated."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: Time | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class FinalizedMeta(Meta, frozen=True, kw_only=True):
    """metadata of a kind with finalizers: a delete marks the object until the last one is removed."""

    deletion_timestamp: Time | None = None
    finalizers: list[str] = []


class Caller(NamedTuple):
    """The user and time (metav1.Time) of a write."""

    user: str
    groups: tuple[str, ...]
    now: str


BY_NAME: Final = MappingProxyType({"metadata.name": lambda item: str(item.metadata.name)})


class ResourceKind(msgspec.Struct, frozen=True):
    """A kind of object: its path, its schema and its rules.

    `on_create` applies admission and defaults to a new object. `on_update(old, new, subresource, caller)`
    returns the state to store. `validate(new, old)` returns causes; old is None for a new object.
    """

    plural: str
    kind: str
    model: type[Any]
    group: str = ""
    version: str = "v1"
    short_names: tuple[str, ...] = ()  # for kubectl
    is_namespaced: bool = False
    is_stored: bool = True  # False: a create is answered and not stored
    subresources: frozenset[str] = frozenset()
    supports_strategic_patch: bool = False
    requires_version: bool = False  # an update must name the resourceVersion; it creates a missing object
    field_selectors: Mapping[str, Callable[[Any], str]] = BY_NAME
    on_create: Callable[[Any, Caller], Any] = lambda new, caller: new
    on_update: Callable[[Any, Any, str, Caller], Any] = lambda old, new, subresource, caller: new
    validate: Callable[[Any, Any | None], list[Cause]] = lambda new, old: []

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


def validate_metadata(new: Meta, old: Meta | None) -> list[Cause]:
    """Return the causes of invalid metadata."""
    causes: list[Cause] = []
    if old is None and not _is_subdomain(new.name):
        causes.append(invalid_value(new.name, "a lowercase RFC 1123 subdomain is needed", "metadata.name"))
    if old is not None and new.uid != old.uid:
        causes.append(invalid_value(new.uid, "field is immutable", "metadata.uid"))
    for key, value in new.labels.items():
        causes += validate_key(key, "metadata.labels") + validate_label_value(value, "metadata.labels")
    for key in new.annotations:
        causes += validate_key(key.lower(), "metadata.annotations")
    if sum(len(k.encode()) + len(v.encode()) for k, v in new.annotations.items()) > _ANNOTATIONS_LIMIT:
        causes.append(too_long_value(_ANNOTATIONS_LIMIT, "metadata.annotations"))
    return causes


def validate_key(key: str, field: str) -> list[Cause]:
    """Return a cause unless the key is a qualified name: optional DNS prefix and slash, 63 characters."""
    prefix, slash, name = key.rpartition("/")
    if slash and not _is_subdomain(prefix):
        return [invalid_value(key, "prefix part must be a lowercase RFC 1123 subdomain", field)]
    if len(name) > 63 or not _NAME_PART.fullmatch(name):
        return [
            invalid_value(key, "name part must consist of at most 63 alphanumeric characters, -_.", field)
        ]
    return []


def validate_label_value(value: str, field: str) -> list[Cause]:
    """Return a cause unless the value is empty or has at most 63 allowed characters."""
    if len(value) <= 63 and _LABEL_VALUE.fullmatch(value):
        return []
    return [
        invalid_value(value, "a valid label must be empty or at most 63 alphanumeric characters, -_.", field)
    ]


def _is_subdomain(name: str) -> bool:
    return len(name) <= 253 and _SUBDOMAIN.fullmatch(name) is not None
