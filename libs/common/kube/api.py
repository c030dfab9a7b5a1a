"""The typed requests to the Kubernetes API. Patches are sent as `node_patch` built them, with the fence."""

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec

from libs.common.contract.node import Node
from libs.common.contract.signing_request import KUBELET_SERVING, SigningRequest, trim_signing_request
from libs.common.json_errors import JSON_ERRORS
from libs.common.kube.config_maps import ConfigMap, config_map_resource, encode_config_map
from libs.common.kube.errors import AlreadyExists, Invalid, ServerError
from libs.common.kube.events import ObjectEvent, event_body, event_namespace
from libs.common.kube.json_patch_body import json_patch_body
from libs.common.kube.kube_config import KubeConfig
from libs.common.kube.lease import Lease, read_lease
from libs.common.kube.objects import (
    PAGE_SIZE,
    Item,
    Page,
    Resource,
    UnreadableObject,
    decode_answer,
    read_page,
)
from libs.common.kube.request import Request
from libs.common.kube.server_identity import ServerIdentity
from libs.common.kube.transport import CONNECTIONS, DEADLINE_SECONDS, RequestObserver, Transport

NODES: Final[Resource[Node]] = Resource(plural="nodes", path="/api/v1/nodes", item=Node)
SIGNING_REQUESTS: Final[Resource[SigningRequest]] = Resource(
    plural="certificatesigningrequests",
    path="/apis/certificates.k8s.io/v1/certificatesigningrequests",
    item=SigningRequest,
    query={"fieldSelector": f"spec.signerName={KUBELET_SERVING}"},
    # A node may create as many requests of 1.5 MB as etcd accepts. So a page has at most about 100 MB.
    page_size=50,
    transform=trim_signing_request,
)
# The API server parses the whole Node again to warn of unknown fields, and this client ignores warnings.
# Without that a patch costs the server 7 % less CPU (2.7 instead of 2.95 ms on kube-apiserver 1.36). Nothing
# else changes.
_UNVALIDATED: Final[Mapping[str, str]] = {"fieldValidation": "Ignore"}

_JSON_PATCH: Final = "application/json-patch+json"
_METHODS: Final = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}


class KubeApi:
    """Client of one API server with one identity. Every method raises KubeError and ends by its deadline."""

    def __init__(
        self,
        config: KubeConfig,
        *,
        user_agent: str,
        component: str = "talos-ccm",
        instance: str = "",
        deadline_seconds: float = DEADLINE_SECONDS,
        connections: int = CONNECTIONS,
        observe: RequestObserver = lambda verb, resource, status, seconds: None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Create a client; Events name `component` and `instance` as source. Raises KubeConfigError."""
        self.transport = Transport(
            config,
            user_agent=user_agent,
            deadline_seconds=deadline_seconds,
            connections=connections,
            observe=observe,
            jitter=jitter,
        )
        self._component = component
        self._instance = instance

    def with_own_connections(self, *, connections: int) -> "KubeApi":
        """Return a client with the same identity and its own connections, so neither delays the other."""
        made = copy(self)
        made.transport = self.transport.with_own_connections(connections=connections)
        return made

    @property
    def server(self) -> str:
        """The URL of the API server, for messages."""
        return self.transport.server

    def problems(self) -> tuple[str, ...]:
        """Return the problems of the client's credentials, in words for /readyz."""
        return self.transport.problems()

    async def close(self) -> None:
        """Close every connection; requests in flight end with Unreachable."""
        await self.transport.close()

    async def fetch_server_identity(self) -> ServerIdentity:
        """Return the names and addresses in the API server's certificate: one TLS handshake, no request."""
        return await self.transport.fetch_server_identity()

    # ---- Nodes

    async def get_node(self, name: str) -> Node:
        """Return the current Node from etcd. Raises NotFound."""
        request = Request(verb="get", resource="nodes", name=name, path=_node_path(name))
        return decode_answer(await self.transport.call(request), Node, request)

    async def list_nodes(self, page_size: int = PAGE_SIZE) -> AsyncIterator[Page[Node]]:
        """Yield pages of all Nodes at one moment, from etcd and never from a cache. Pages may raise Gone."""
        async for page in self._list_all(NODES, limit=page_size):
            yield page

    async def patch_node(
        self, name: str, json_patch: Sequence[dict[str, Any]], *, is_urgent: bool = False
    ) -> Node:
        """Apply a JSON Patch; return the Node after it. Raises FenceFailed, Invalid, NotFound.

        An urgent patch goes before all requests that wait for a connection (RequestQueue).
        """
        request = _write(
            "patch",
            "nodes",
            name,
            _node_path(name),
            json_patch_body(json_patch),
            content_type=_JSON_PATCH,
            query=_UNVALIDATED,
            is_urgent=is_urgent,
        )
        return decode_answer(await self.transport.call(request), Node, request)

    async def patch_node_status(self, name: str, strategic_merge: dict[str, Any]) -> Node:
        """Apply a strategic merge patch to nodes/status. Raises FenceFailed, Invalid, NotFound."""
        request = _write(
            "patch",
            "nodes/status",
            name,
            f"{_node_path(name)}/status",
            msgspec.json.encode(strategic_merge),
            content_type="application/strategic-merge-patch+json",
        )
        return decode_answer(await self.transport.call(request), Node, request)

    async def delete_node(self, name: str, *, uid: str, resource_version: str) -> None:
        """Delete exactly this version of the Node. Raises Conflict if it has another version, NotFound.

        Both preconditions are required: an empty one would not fence the deletion.
        """
        if not uid or not resource_version:
            raise Invalid(f"node {name!r} is not deleted without a uid and a resourceVersion")
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        request = _write("delete", "nodes", name, _node_path(name), msgspec.json.encode(body))
        await self.transport.call(request)

    # ---- CertificateSigningRequests

    async def patch_signing_request_approval(self, name: str, json_patch: Sequence[dict[str, Any]]) -> None:
        """Apply a JSON Patch to /approval; ignore the response. Raises FenceFailed, Invalid, NotFound.

        Forbidden names the missing permission: this one, or `approve` on the signer.
        """
        request = _write(
            "patch",
            "certificatesigningrequests/approval",
            name,
            f"{SIGNING_REQUESTS.path}/{_segment(name)}/approval",
            json_patch_body(json_patch),
            content_type=_JSON_PATCH,
        )
        await self.transport.call(request)

    # ---- ConfigMaps

    async def list_config_maps(
        self, namespace: str, labels: Mapping[str, str]
    ) -> AsyncIterator[Page[ConfigMap]]:
        """Yield pages of the ConfigMaps with all these labels at one moment, from etcd. May raise Gone."""
        async for page in self._list_all(config_map_resource(namespace, labels)):
            yield page

    async def get_config_map(self, namespace: str, name: str) -> ConfigMap:
        """Return the current ConfigMap from etcd. Raises NotFound."""
        path = f"{config_map_resource(namespace, {}).path}/{_segment(name)}"
        request = Request(verb="get", resource="configmaps", name=name, path=path)
        return decode_answer(await self.transport.call(request), ConfigMap, request)

    async def create_config_map(self, namespace: str, config_map: ConfigMap) -> ConfigMap:
        """Create a ConfigMap; return it. Raises AlreadyExists, Invalid."""
        request = _write(
            "create",
            "configmaps",
            config_map.metadata.name,
            config_map_resource(namespace, {}).path,
            encode_config_map(config_map),
        )
        return decode_answer(await self.transport.call(request), ConfigMap, request)

    async def update_config_map(self, namespace: str, config_map: ConfigMap) -> ConfigMap:
        """Replace the version with its resourceVersion; return the new ConfigMap.

        Raises Conflict if the version has changed, NotFound if the ConfigMap does not exist, Invalid.
        """
        name = config_map.metadata.name
        request = _write(
            "update",
            "configmaps",
            name,
            f"{config_map_resource(namespace, {}).path}/{_segment(name)}",
            encode_config_map(config_map),
        )
        return decode_answer(await self.transport.call(request), ConfigMap, request)

    # ---- Events

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool:
        """Create an Event; return False if the same one was created in this minute. `now` is in UTC."""
        namespace = event_namespace(event.regarding)
        body = event_body(event, component=self._component, instance=self._instance, now=now)
        request = _write(
            "create",
            "events",
            event.regarding.name,
            f"/api/v1/namespaces/{_segment(namespace)}/events",
            msgspec.json.encode(body),
        )
        try:
            await self.transport.call(request)
        except AlreadyExists:
            return False
        return True

    # ---- Leases

    async def get_lease(self, namespace: str, name: str, *, deadline_seconds: float | None = None) -> Lease:
        """Return the Lease. Raises NotFound."""
        request = Request(verb="get", resource="leases", name=name, path=_lease_path(namespace, name))
        return await self._lease(request, deadline_seconds)

    async def create_lease(
        self, namespace: str, document: dict[str, Any], *, deadline_seconds: float | None = None
    ) -> Lease:
        """Create the Lease; return it. Raises AlreadyExists."""
        request = _write("create", "leases", "", _lease_path(namespace, ""), msgspec.json.encode(document))
        return await self._lease(request, deadline_seconds)

    async def update_lease(
        self, namespace: str, name: str, document: dict[str, Any], *, deadline_seconds: float | None = None
    ) -> Lease:
        """Replace the version with the document's resourceVersion. Raises Conflict if it has changed."""
        request = _write(
            "update", "leases", name, _lease_path(namespace, name), msgspec.json.encode(document)
        )
        return await self._lease(request, deadline_seconds)

    async def _lease(self, request: Request, deadline_seconds: float | None) -> Lease:
        body = await self.transport.call(request, deadline_seconds=deadline_seconds)
        try:
            return read_lease(body)
        except JSON_ERRORS as error:
            raise ServerError(f"invalid response: {error}", request=str(request)) from error

    # ---- any kind

    async def list_page(
        self,
        resource: Resource[Item],
        *,
        limit: int | None = None,
        continue_token: str = "",
        on_unreadable: Callable[[UnreadableObject], None],
    ) -> Page[Item]:
        """Return one page of a quorum list (no resourceVersion). Raises Gone if the token is too old.

        `limit` defaults to the page size of the resource.
        """
        query = {**resource.query, "limit": str(limit or resource.page_size)}
        if continue_token:
            query["continue"] = continue_token
        request = Request(verb="list", resource=resource.plural, path=resource.path, query=query)
        return read_page(await self.transport.call(request), resource, request, on_unreadable)

    async def _list_all(
        self, resource: Resource[Item], *, limit: int | None = None
    ) -> AsyncIterator[Page[Item]]:
        token = ""
        while True:
            page = await self.list_page(
                resource, limit=limit, continue_token=token, on_unreadable=raise_unreadable
            )
            yield page
            token = page.continue_token
            if not token:
                return


def raise_unreadable(unreadable: UnreadableObject) -> None:
    """Raise ServerError: for callers that need every object, because an incomplete list would be wrong."""
    raise ServerError(f"{unreadable.resource} {unreadable.name!r} cannot be parsed: {unreadable.reason}")


def _write(
    verb: str,
    resource: str,
    name: str,
    path: str,
    body: bytes,
    *,
    content_type: str = "application/json",
    query: Mapping[str, str] | None = None,
    is_urgent: bool = False,
) -> Request:
    return Request(
        verb=verb,
        resource=resource,
        name=name,
        path=path,
        method=_METHODS[verb],
        query=query or {},
        body=body,
        content_type=content_type,
        is_urgent=is_urgent,
    )


def _segment(name: str) -> str:
    if not name or name in {".", ".."}:
        raise Invalid(f"{name!r} is not an object name")  # the path would address the collection
    return quote(name, safe="")


def _node_path(name: str) -> str:
    return f"{NODES.path}/{_segment(name)}"


def _lease_path(namespace: str, name: str) -> str:
    collection = f"/apis/coordination.k8s.io/v1/namespaces/{_segment(namespace)}/leases"
    return f"{collection}/{_segment(name)}" if name else collection
