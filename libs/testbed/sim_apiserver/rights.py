"""Who may do what: system:masters, RBAC, and the part of Node authorizer and NodeRestriction that we meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from libs.testbed.sim_apiserver.access_reviews import ACCESS_REVIEWS
from libs.testbed.sim_apiserver.asked import Asked
from libs.testbed.sim_apiserver.discovery import DOCUMENTS, PUBLIC_PATHS
from libs.testbed.sim_apiserver.nodes import Node
from libs.testbed.sim_apiserver.objects import Kind
from libs.testbed.sim_apiserver.refusals import Named, Refusal, forbidden
from libs.testbed.sim_apiserver.roles import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    Role,
    Rule,
)
from libs.testbed.sim_apiserver.store import Key, Store

NODE_USER: Final = "system:node:"
_NODE_LEASES: Final = "kube-node-lease"
_WRITES: Final = ("create", "update", "patch")
# Labels of these domains that a kubelet may set nevertheless (KEP-279).
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
    """A user and the groups that the certificate or the impersonation names."""

    user: str
    groups: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """The node's name if this is a kubelet, else ""."""
        is_node = self.user.startswith(NODE_USER) and "system:nodes" in self.groups
        return self.user.removeprefix(NODE_USER) if is_node else ""


ANONYMOUS: Final = Identity("system:anonymous", ("system:unauthenticated",))


def impersonated(identity: Identity, headers: Mapping[str, str], groups: Sequence[str]) -> Identity:
    """Who the request is made as. Raises Refusal: only an admin may impersonate."""
    user = headers.get("Impersonate-User", "")
    if not user:
        return identity
    if "system:masters" not in identity.groups:
        about = Named("users", name=user)
        raise forbidden(about, _cannot(identity, "impersonate", "users", "", ""))
    known = {"system:authenticated", "system:unauthenticated"} & set(groups)
    return Identity(user, (*groups, *(() if known else ("system:authenticated",))))


def authorize(identity: Identity, asked: Asked, store: Store) -> None:
    """Raises Refusal unless it is allowed."""
    if may(identity, asked, store):
        return
    if asked.kind is None:
        why = f'forbidden: User "{identity.user}" cannot get path "{asked.path}"'
        raise Refusal(403, "Forbidden", why)
    why = _cannot(identity, asked.verb, asked.resource, asked.kind.group, asked.namespace)
    raise forbidden(asked.kind.named(asked.name), why)


def may(identity: Identity, asked: Asked, store: Store) -> bool:
    """Whether it is allowed."""
    if "system:masters" in identity.groups:
        return True
    if asked.kind is None:
        return asked.path in PUBLIC_PATHS or (asked.path in DOCUMENTS and identity != ANONYMOUS)
    if asked.kind == ACCESS_REVIEWS and asked.verb == "create" and identity != ANONYMOUS:
        return True  # everybody may ask (system:basic-user)
    if identity.node and _node_may(identity.node, asked):
        return True
    return _granted(identity, asked, asked.kind, store)


def _cannot(identity: Identity, verb: str, resource: str, group: str, namespace: str) -> str:
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    return f'User "{identity.user}" cannot {verb} resource "{resource}" in API group "{group}" {where}'


def _node_may(node: str, asked: Asked) -> bool:
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


def _granted(identity: Identity, asked: Asked, kind: Kind, store: Store) -> bool:
    rules = list(_rules(identity, CLUSTER_ROLE_BINDINGS, "", store))
    if asked.namespace:
        rules += _rules(identity, ROLE_BINDINGS, asked.namespace, store)
    return any(rule.allows(asked.verb, kind.group, asked.resource, asked.name) for rule in rules)


def _rules(identity: Identity, bindings: Kind, namespace: str, store: Store) -> list[Rule]:
    found: list[Rule] = []
    for stored in store.table(bindings.plural).of(namespace):
        if not stored.item.binds(identity.user, identity.groups):
            continue
        ref = stored.item.role_ref
        key = Key("", ref.name) if ref.kind == "ClusterRole" else Key(namespace, ref.name)
        plural = CLUSTER_ROLES.plural if ref.kind == "ClusterRole" else ROLES.plural
        role = store.table(plural).objects.get(key)
        if role is not None and isinstance(role.item, Role):
            found += role.item.rules
    return found


def admit(identity: Identity, asked: Asked, new: Any, old: Any | None) -> None:
    """NodeRestriction: a kubelet writes its own objects only, and not every label. Raises Refusal."""
    assert asked.kind is not None
    kind = asked.kind
    about = kind.named(new.metadata.name)
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
