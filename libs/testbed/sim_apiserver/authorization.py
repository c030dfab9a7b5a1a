"""Authorization by system:masters, RBAC and the Node authorizer, and of approvals, as far as used.

Rules for non-resource URLs and subjects that are service accounts are not simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from libs.testbed.sim_apiserver.api_request import ApiRequest
from libs.testbed.sim_apiserver.certificates import SIGNING_REQUESTS
from libs.testbed.sim_apiserver.discovery import DOCUMENTS, PUBLIC_PATHS
from libs.testbed.sim_apiserver.object_store import Key, ObjectStore
from libs.testbed.sim_apiserver.refusals import Refusal, ResourceReference, forbidden
from libs.testbed.sim_apiserver.resource_kind import Document, Identity, ResourceKind

_NODE_LEASES: Final = "kube-node-lease"
_WRITES: Final = ("create", "update", "patch")
_SIGNERS: Final = ResourceKind("signers", "", group=SIGNING_REQUESTS.group)


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
    if asked.resource == "selfsubjectaccessreviews" and asked.verb == "create" and identity != ANONYMOUS:
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
    rules = list(_list_rules(identity, "clusterrolebindings", "", store))
    if asked.namespace:
        rules += _list_rules(identity, "rolebindings", asked.namespace, store)
    wanted = {"verbs": asked.verb, "apiGroups": kind.group, "resources": asked.resource}
    return any(
        all(value in (listed := rule.get(part, [])) or "*" in listed for part, value in wanted.items())
        and (not rule.get("resourceNames") or asked.name in rule["resourceNames"])
        for rule in rules
    )


def _list_rules(identity: Identity, bindings: str, namespace: str, store: ObjectStore) -> Iterator[Document]:
    mine = {("User", identity.user), *(("Group", group) for group in identity.groups)}
    for stored in store.table(bindings).list_namespace(namespace):
        if not any((one["kind"], one["name"]) in mine for one in stored.item.get("subjects", [])):
            continue
        ref = stored.item["roleRef"]
        for_all = ref["kind"] == "ClusterRole"
        roles = store.table("clusterroles" if for_all else "roles").objects
        if role := roles.get(Key("" if for_all else namespace, ref["name"])):
            yield from role.item.get("rules") or []


def admit_approval(identity: Identity, new: Document, store: ObjectStore) -> None:
    """Admit an approval (plugin CertificateApproval). Raises Refusal without the right for the signer."""
    signer = new["spec"]["signerName"]
    names = (signer, f"{signer.partition('/')[0]}/*")
    if not any(
        is_allowed(identity, ApiRequest(verb="approve", path="", kind=_SIGNERS, name=one), store)
        for one in names
    ):
        about = SIGNING_REQUESTS.make_reference(new["metadata"]["name"])
        raise forbidden(about, f'user not permitted to approve requests with signerName "{signer}"')
