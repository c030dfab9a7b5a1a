"""The permissions of a ServiceAccount by its token: as listed, by trying, and what must be forbidden."""

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from libs.common.contract.services import PolicyRule
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.helm.chart import NAMESPACE
from libs.testbed.helm.chart import RELEASE as PREFIX
from libs.testbed.kubelets import JSON, MERGE, HttpResponse, KubeletFleet
from tests.deploy.pods import token_of

_METHODS = {
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}
_ON_ALL = {"create", "list", "watch", "deletecollection"}


class Rule(NamedTuple):
    """One allowed action; name "" is any."""

    group: str
    resource: str
    verb: str
    name: str = ""


class Try(NamedTuple):
    """One action to try."""

    group: str
    resource: str
    verb: str
    name: str = ""
    namespace: str = ""

    @property
    def path(self) -> str:
        """The URL path; a subresource follows the name."""
        resource, _, subresource = self.resource.partition("/")
        root = f"/apis/{self.group}/v1" if self.group else "/api/v1"
        parts = [root, *(["namespaces", self.namespace] if self.namespace else []), resource]
        if self.verb not in _ON_ALL or subresource:
            parts.append(self.name or "probe")
        if subresource:
            parts.append(subresource)
        return "/".join(parts) + ("?watch=1&timeoutSeconds=1" if self.verb == "watch" else "")


def rules_of(rights: Iterable[PolicyRule], namespace: str) -> set[Rule]:
    """The actions that these rules allow in that namespace, cluster-wide ones included."""
    return {
        Rule(right.group, right.resource, verb, name)
        for right in rights
        if right.namespace in ("", namespace)
        for verb in right.verbs
        for name in right.resource_names or ("",)
    }


def tries_of(rights: Iterable[PolicyRule]) -> set[Try]:
    """Each action that these rules allow, for another account to try."""
    return {
        Try(right.group, right.resource, verb, name, right.namespace)
        for right in rights
        if right.resource
        != "signers"  # not a resource that can be requested: admission checks it at an approval
        for verb in right.verbs
        for name in right.resource_names or ("",)
    }


class Account:
    """A client with only the token of an account."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session = session
        self._server = server

    @classmethod
    @asynccontextmanager
    async def of(
        cls, control_plane: ControlPlane, kubelets: KubeletFleet, namespace: str, name: str
    ) -> AsyncIterator["Account"]:
        """Return a client with a new token of that ServiceAccount."""
        headers = {"Authorization": f"Bearer {await token_of(kubelets, namespace, name)}"}
        trust = ssl.create_default_context(cafile=control_plane.ca_file)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust), headers=headers
        ) as session:
            yield cls(session, control_plane.server)

    async def request(
        self, method: str, path: str, body: Any = None, *, content_type: str = JSON, **headers: str
    ) -> HttpResponse:
        """Send one request and return the response, whatever its status."""
        data = None if body is None else msgspec.json.encode(body)
        sent = {"Content-Type": content_type, **headers}
        async with self._session.request(method, self._server + path, data=data, headers=sent) as answer:
            text = await answer.read()
            return HttpResponse(answer.status, msgspec.json.decode(text) if text.startswith(b"{") else text)

    async def tries(self, what: Try) -> HttpResponse:
        """Try the action; a forbidden one is rejected before the server validates body or name."""
        method = _METHODS.get(what.verb, "GET")
        body: Any = {} if method in ("POST", "PUT", "PATCH") else None
        return await self.request(method, what.path, body, content_type=MERGE if method == "PATCH" else JSON)

    async def rules(self, namespace: str) -> set[Rule]:
        """All actions that the API server allows in that namespace (SelfSubjectRulesReview)."""
        path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        body: dict[str, Any] = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        }
        answer = await self.request("POST", path, body)
        assert answer.status == 201, answer
        return {
            Rule(group, resource, verb, name)
            for rule in answer.body["status"]["resourceRules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            for name in rule.get("resourceNames", [""])
        }


RBAC: Final = "rbac.authorization.k8s.io"
APPS: Final = "apps"
COORDINATION: Final = "coordination.k8s.io"
CERTIFICATES: Final = "certificates.k8s.io"

NEVER: Final = (
    *(
        Try("", "serviceaccounts/token", "create", name, NAMESPACE)
        for name in ("default", f"{PREFIX}-lifecycle")
    ),
    *(
        Try("", "serviceaccounts", verb, namespace=NAMESPACE)
        for verb in ("list", "create", "deletecollection")
    ),
    *(Try("", "secrets", verb) for verb in ("list", "watch")),
    *(Try("", "secrets", verb, namespace=NAMESPACE) for verb in ("list", "watch", "deletecollection")),
    *(
        Try("", "secrets", verb, f"{PREFIX}-nats-labeler", NAMESPACE)
        for verb in ("update", "patch", "delete")
    ),
    *(Try("", "secrets", "get", name, NAMESPACE) for name in ("another", f"{PREFIX}-talos-secrets")),
    Try("", "secrets", "create", namespace="default"),
    Try("", "configmaps", "list"),
    Try("", "configmaps", "create", namespace="default"),
    *(
        Try("", "configmaps", verb, name, NAMESPACE)
        for name in ("kube-root-ca.crt", "coredns", PREFIX)
        for verb in ("get", "update", "patch", "delete")
    ),
    Try("", "configmaps", "list", namespace=NAMESPACE),
    *(Try("", "pods", verb, namespace=NAMESPACE) for verb in ("get", "list", "create", "delete")),
    *(
        Try("", f"pods/{what}", "create", "etcd", NAMESPACE)
        for what in ("exec", "attach", "eviction", "binding")
    ),
    *(Try("", "nodes", verb) for verb in ("create", "update", "deletecollection")),
    *(Try("", f"nodes/{what}", "get", "cp") for what in ("proxy", "log", "metrics")),
    *(Try("", "namespaces", verb) for verb in ("list", "create", "delete")),
    *(Try("", "events", verb, namespace=NAMESPACE) for verb in ("create", "list")),
    *(Try("", "events", verb, namespace="default") for verb in ("list", "patch", "delete")),
    *(Try("", "services", verb, "kubernetes", "default") for verb in ("get", "update", "delete")),
    *(
        Try(RBAC, kind, verb)
        for kind in ("clusterroles", "clusterrolebindings")
        for verb in ("list", "create", "patch")
    ),
    *(
        Try(RBAC, kind, verb, namespace=NAMESPACE)
        for kind in ("roles", "rolebindings")
        for verb in ("list", "create")
    ),
    *(
        Try(APPS, "daemonsets", verb, "kube-proxy", NAMESPACE)
        for verb in ("get", "create", "patch", "delete")
    ),
    *(
        Try(COORDINATION, "leases", verb, "kube-controller-manager", NAMESPACE)
        for verb in ("get", "update", "patch", "delete")
    ),
    *(Try(COORDINATION, "leases", verb, "cp", "kube-node-lease") for verb in ("get", "update", "delete")),
    *(
        Try(CERTIFICATES, "certificatesigningrequests", verb)
        for verb in ("create", "get", "update", "delete")
    ),
    *(Try(CERTIFICATES, "certificatesigningrequests/status", verb) for verb in ("update", "patch")),
    Try(CERTIFICATES, "certificatesigningrequests/approval", "update"),
    Try("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "create"),
    Try("apiextensions.k8s.io", "customresourcedefinitions", "create"),
    Try("authentication.k8s.io", "tokenreviews", "create"),
    Try("authorization.k8s.io", "subjectaccessreviews", "create"),
)
