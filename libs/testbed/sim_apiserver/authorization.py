"""Authorization by system:masters, RBAC and the Node authorizer, and admission by the user, as far as used.

Rules for non-resource URLs and subjects that are service accounts are not simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from libs.testbed.sim_apiserver.api_request import ApiRequest
from libs.testbed.sim_apiserver.certificates import SIGNING_REQUESTS, get_pem
from libs.testbed.sim_apiserver.discovery import DOCUMENTS, PUBLIC_PATHS
from libs.testbed.sim_apiserver.object_store import Key, ObjectStore
from libs.testbed.sim_apiserver.refusals import Refusal, ResourceReference, forbidden
from libs.testbed.sim_apiserver.request_pem import get_common_name, get_organizations, parse_request_pem
from libs.testbed.sim_apiserver.resource_kind import Document, ResourceKind

_NODE_USER: Final = "system:node:"
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
_OF_KUBELETS: Final = {"kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"}
_OF_CLIENTS: Final = "kubernetes.io/kube-apiserver-client"
_SIGNERS: Final = ResourceKind("signers", "", group=SIGNING_REQUESTS.group)


class Identity(NamedTuple):
    """A user and groups, from the certificate or by impersonation."""

    user: str
    groups: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """The name of the kubelet's node; "" for other users."""
        is_node = self.user.startswith(_NODE_USER) and "system:nodes" in self.groups
        return self.user.removeprefix(_NODE_USER) if is_node else ""


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


def admit(
    identity: Identity, asked: ApiRequest, new: Document, old: Document | None, store: ObjectStore
) -> None:
    """Admit a write: NodeRestriction, CertificateSubjectRestriction, CertificateApproval. Raises Refusal."""
    assert asked.kind is not None
    about, node = asked.kind.make_reference(new["metadata"]["name"]), identity.node
    if asked.resource == "certificatesigningrequests/approval":
        _admit_approval(identity, new, about, store)
    elif asked.resource == "certificatesigningrequests" and asked.verb == "create":
        _admit_request(identity, new, about)
    elif node and asked.kind.plural == "leases" and about.name != node:
        raise forbidden(about, "can only access node lease with the same name as the requesting node")
    elif node and asked.kind.plural == "nodes":
        _admit_node(node, new, old, about)


def _admit_node(node: str, new: Document, old: Document | None, about: ResourceReference) -> None:
    """A kubelet writes only its own Node, and only some labels."""
    if about.name != node:
        raise forbidden(about, f'node "{node}" is not allowed to modify node "{about.name}"')
    after = new["metadata"].get("labels", {})
    before = old["metadata"].get("labels", {}) if old else {}
    changed = {key for key in {*after, *before} if after.get(key) != before.get(key)}
    restricted = sorted(label for label in changed if _is_restricted(label))
    if restricted:
        what = "set the following" if old is None else "modify"
        raise forbidden(about, f'node "{node}" is not allowed to {what} labels: {", ".join(restricted)}')
    if old and new["spec"].get("taints", []) != old["spec"].get("taints", []):
        raise forbidden(about, f'node "{node}" is not allowed to modify taints')


def _admit_approval(identity: Identity, new: Document, about: ResourceReference, store: ObjectStore) -> None:
    signer = new["spec"]["signerName"]
    names = (signer, f"{signer.partition('/')[0]}/*")
    if not any(
        is_allowed(identity, ApiRequest(verb="approve", path="", kind=_SIGNERS, name=one), store)
        for one in names
    ):
        raise forbidden(about, f'user not permitted to approve requests with signerName "{signer}"')


def _admit_request(identity: Identity, new: Document, about: ResourceReference) -> None:
    signer = new["spec"].get("signerName", "")
    try:
        csr = parse_request_pem(get_pem(new))
    except ValueError as error:
        if identity.node and signer in _OF_KUBELETS:
            raise forbidden(about, f"unable to parse csr: {error}") from error
        return  # validation reports it
    own = f"{_NODE_USER}{identity.node}"
    if identity.node and signer in _OF_KUBELETS and get_common_name(csr) != own:
        raise forbidden(about, f"can only create a node CSR with CN={own}")
    if signer == _OF_CLIENTS and "system:masters" in get_organizations(csr):
        raise forbidden(about, f"use of {signer} signer with system:masters group is not allowed")


def _is_restricted(label: str) -> bool:
    domain = label.rpartition("/")[0]
    kubernetes = any(domain == one or domain.endswith(f".{one}") for one in ("kubernetes.io", "k8s.io"))
    kubelets = any(domain == one or domain.endswith(f".{one}") for one in _KUBELET_DOMAINS)
    return kubernetes and not kubelets and label not in _KUBELET_LABELS
