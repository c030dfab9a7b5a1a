"""Authorization by system:masters, RBAC, and the used parts of the Node authorizer and NodeRestriction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from libs.testbed.sim_apiserver.access_reviews import ACCESS_REVIEWS
from libs.testbed.sim_apiserver.api_request import ApiRequest
from libs.testbed.sim_apiserver.discovery import DOCUMENTS, PUBLIC_PATHS
from libs.testbed.sim_apiserver.nodes import Node
from libs.testbed.sim_apiserver.object_store import Key, ObjectStore
from libs.testbed.sim_apiserver.objects import ResourceKind
from libs.testbed.sim_apiserver.refusals import Refusal, ResourceReference, forbidden
from libs.testbed.sim_apiserver.roles import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    Role,
    Rule,
)

NODE_USER: Final = "system:node:"
_NODE_LEASES: Final = "kube-node-lease"
_WRITES: Final = ("create", "update", "patch")
# Labels in restricted domains that a kubelet may set (KEP-279).
_KUBELET_LABELS: Final = {
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
}
_KUBELET_DOMAINS: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")


class Identity(NamedTuple):
    """A user and groups, from the certificate or by impersonation."""

    user: str
    groups: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """The name of the kubelet's node; "" for other users."""
        is_node = self.user.startswith(NODE_USER) and "system:nodes" in self.groups
        return self.user.removeprefix(NODE_USER) if is_node else ""


ANONYMOUS: Final = Identity("system:anonymous", ("system:unauthenticated",))


def impersonate(identity: Identity, headers: Mapping[str, str], groups: Sequence[str]) -> Identity:
    """Return the identity of the request. Raises Refusal: only an admin may impersonate."""
    user = headers.get("Impersonate-User", "")
    if not user:
        return identity
    if "system:masters" not in identity.groups:
        about = ResourceReference("users", name=user)
        raise forbidden(about, _describe_forbidden(identity, "impersonate", "users", "", ""))
    known = {"system:authenticated", "system:unauthenticated"} & set(groups)
    return Identity(user, (*groups, *(() if known else ("system:authenticated",))))


def authorize(identity: Identity, asked: ApiRequest, store: ObjectStore) -> None:
    """Raise Refusal unless the request is allowed."""
    if is_allowed(identity, asked, store):
        return
    if asked.kind is None:
        why = f'forbidden: User "{identity.user}" cannot get path "{asked.path}"'
        raise Refusal(403, "Forbidden", why)
    why = _describe_forbidden(identity, asked.verb, asked.resource, asked.kind.group, asked.namespace)
    raise forbidden(asked.kind.make_reference(asked.name), why)


def is_allowed(identity: Identity, asked: ApiRequest, store: ObjectStore) -> bool:
    """Whether the request is allowed."""
    if "system:masters" in identity.groups:
        return True
    if asked.kind is None:
        return asked.path in PUBLIC_PATHS or (asked.path in DOCUMENTS and identity != ANONYMOUS)
    if asked.kind == ACCESS_REVIEWS and asked.verb == "create" and identity != ANONYMOUS:
        return True  # allowed to every authenticated user (system:basic-user)
    if identity.node and _is_allowed_for_node(identity.node, asked):
        return True
    return _is_granted(identity, asked, asked.kind, store)


def _describe_forbidden(identity: Identity, verb: str, resource: str, group: str, namespace: str) -> str:
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    return f'User "{identity.user}" cannot {verb} resource "{resource}" in API group "{group}" {where}'


def _is_allowed_for_node(node: str, asked: ApiRequest) -> bool:
    match asked.resource:
        case "nodes" | "nodes/status":
            return asked.verb in _WRITES or (asked.verb == "get" and asked.name == node)
        case "leases":
            own = asked.name in {"", node}
            return asked.namespace == _NODE_LEASES and own and asked.verb in {*_WRITES, "get", "delete"}
        case "events":
            return asked.verb in _WRITES
        case "certificatesigningrequests":
            return asked.verb in {"create", "get", "list", "watch"}
        case _:
            return False


def _is_granted(identity: Identity, asked: ApiRequest, kind: ResourceKind, store: ObjectStore) -> bool:
    rules = list(_list_rules(identity, CLUSTER_ROLE_BINDINGS, "", store))
    if asked.namespace:
        rules += _list_rules(identity, ROLE_BINDINGS, asked.namespace, store)
    return any(rule.allows(asked.verb, kind.group, asked.resource, asked.name) for rule in rules)


def _list_rules(identity: Identity, bindings: ResourceKind, namespace: str, store: ObjectStore) -> list[Rule]:
    found: list[Rule] = []
    for stored in store.table(bindings.plural).list_namespace(namespace):
        if not stored.item.binds(identity.user, identity.groups):
            continue
        ref = stored.item.role_ref
        key = Key("", ref.name) if ref.kind == "ClusterRole" else Key(namespace, ref.name)
        plural = CLUSTER_ROLES.plural if ref.kind == "ClusterRole" else ROLES.plural
        role = store.table(plural).objects.get(key)
        if role is not None and isinstance(role.item, Role):
            found += role.item.rules
    return found


def admit(identity: Identity, asked: ApiRequest, new: Any, old: Any | None) -> None:
    """NodeRestriction: a kubelet writes only its own objects and only some labels. Raises Refusal."""
    assert asked.kind is not None
    kind = asked.kind
    about = kind.make_reference(new.metadata.name)
    node = identity.node
    if not node:
        return
    if kind.plural == "leases" and new.metadata.name != node:
        raise forbidden(about, "can only access node lease with the same name as the requesting node")
    if not isinstance(new, Node):
        return
    if new.metadata.name != node:
        raise forbidden(about, f'node "{node}" is not allowed to modify node "{new.metadata.name}"')
    before = old.metadata.labels if isinstance(old, Node) else {}
    changed = {k for k in {*new.metadata.labels, *before} if new.metadata.labels.get(k) != before.get(k)}
    restricted = sorted(label for label in changed if _is_restricted(label))
    if restricted:
        what = "set the following" if old is None else "modify"
        raise forbidden(about, f'node "{node}" is not allowed to {what} labels: {", ".join(restricted)}')
    if isinstance(old, Node) and new.spec.taints != old.spec.taints:
        raise forbidden(about, f'node "{node}" is not allowed to modify taints')


def _is_restricted(label: str) -> bool:
    domain = label.rpartition("/")[0]
    kubernetes = any(domain == one or domain.endswith(f".{one}") for one in ("kubernetes.io", "k8s.io"))
    kubelets = any(domain == one or domain.endswith(f".{one}") for one in _KUBELET_DOMAINS)
    return kubernetes and not kubelets and label not in _KUBELET_LABELS
