"""The description of a kind. Objects are JSON without kind and apiVersion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from libs.common.contract.signing_request import NODE_USER_PREFIX, NODES_GROUP
from libs.testbed.sim_apiserver.refusals import ResourceReference

Document = dict[str, Any]


class Identity(NamedTuple):
    """A user and groups, from the certificate or by impersonation."""

    user: str
    groups: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """The name of the kubelet's node; "" for other users."""
        is_node = self.user.startswith(NODE_USER_PREFIX) and NODES_GROUP in self.groups
        return self.user.removeprefix(NODE_USER_PREFIX) if is_node else ""


class ResourceKind(msgspec.Struct, frozen=True):
    """A kind of object: its path, the types of its known fields, and its rules.

    `on_create` applies admission and defaults to a new object. `on_update(old, new, subresource, now)`
    returns the state to store; `now` is a metav1.Time. `check_update(old, new)` raises Refusal for what must
    not change. None of them changes its arguments.
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
    on_create: Callable[[Document, Identity], Document] = lambda new, identity: new
    on_update: Callable[[Document, Document, str, str], Document] = lambda old, new, subresource, now: new
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


def update_part(old: Document, new: Document, subresource: str, now: str) -> Document:
    """Apply an update: the object's own path keeps the status, its status path the spec."""
    kept = "spec" if subresource == "status" else "status"
    return {**new, kept: old.get(kept, {})}
