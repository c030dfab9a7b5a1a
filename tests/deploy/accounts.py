"""The permissions of a ServiceAccount by its token, as the API server lists them."""

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import msgspec

from libs.common.contract.services import PolicyRule
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import JSON, HttpResponse, KubeletFleet
from tests.deploy.pods import token_of


class Rule(NamedTuple):
    """One allowed action; name "" is any."""

    group: str
    resource: str
    verb: str
    name: str = ""


def rules_of(rights: Iterable[PolicyRule], namespace: str) -> set[Rule]:
    """The actions that these rules allow in that namespace, cluster-wide ones included."""
    return {
        Rule(right.group, right.resource, verb, name)
        for right in rights
        if right.namespace in ("", namespace)
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
