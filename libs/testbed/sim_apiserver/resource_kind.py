"""The description of a kind. Objects are JSON without kind and apiVersion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from libs.testbed.sim_apiserver.refusals import ResourceReference

Document = dict[str, Any]


class Caller(NamedTuple):
    """The user and time (metav1.Time) of a write."""

    user: str
    groups: tuple[str, ...]
    now: str


class ResourceKind(msgspec.Struct, frozen=True):
    """A kind of object: its path, the types of its known fields, and its rules.

    `on_create` applies admission and defaults to a new object. `on_update(old, new, subresource, caller)`
    returns the state to store; `check_update(old, new)` raises Refusal for what must not change. None of them
    changes its arguments.
    """

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
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
    check_update: Callable[[Document, Document], None] = lambda old, new: None

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
