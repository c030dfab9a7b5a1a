"""Roles and bindings: their schema, and the permissions that they grant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import field

from libs.testbed.sim_apiserver.objects import Meta, ResourceKind

RBAC: Final = "rbac.authorization.k8s.io"


class Rule(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """Allowed actions; "*" matches anything, no names mean all names. Non-resource URLs are not simulated."""

    verbs: list[str]
    api_groups: list[str] = []
    resources: list[str] = []
    resource_names: list[str] = []

    def allows(self, verb: str, group: str, resource: str, name: str) -> bool:
        """Whether this rule allows the action."""
        return (
            _covers(self.verbs, verb)
            and _covers(self.api_groups, group)
            and _covers(self.resources, resource)
            and (not self.resource_names or name in self.resource_names)
        )


class Role(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Role or a ClusterRole."""

    metadata: Meta = field(default_factory=Meta)
    rules: list[Rule] = []


class RoleRef(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The role of a binding."""

    api_group: str
    kind: str
    name: str


class Subject(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A user or a group; service accounts are not simulated."""

    api_group: str
    kind: str
    name: str


class Binding(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A RoleBinding or a ClusterRoleBinding."""

    role_ref: RoleRef
    metadata: Meta = field(default_factory=Meta)
    subjects: list[Subject] = []

    def binds(self, user: str, groups: Iterable[str]) -> bool:
        """Whether the user or one of the groups is a subject."""
        return any(
            one.name == user if one.kind == "User" else one.kind == "Group" and one.name in groups
            for one in self.subjects
        )


def _covers(listed: list[str], wanted: str) -> bool:
    return wanted in listed or "*" in listed


CLUSTER_ROLES: Final = ResourceKind(plural="clusterroles", kind="ClusterRole", group=RBAC, model=Role)
CLUSTER_ROLE_BINDINGS: Final = ResourceKind(
    plural="clusterrolebindings", kind="ClusterRoleBinding", group=RBAC, model=Binding
)
ROLES: Final = ResourceKind("roles", "Role", Role, group=RBAC, is_namespaced=True)
ROLE_BINDINGS: Final = ResourceKind("rolebindings", "RoleBinding", Binding, group=RBAC, is_namespaced=True)
