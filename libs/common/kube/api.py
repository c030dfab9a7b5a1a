"""The typed requests to the Kubernetes API. Patches are sent as `node_patch` built them, with the fence."""

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from libs.common.contract.kube_service import (
    KubeService,
    KubeServiceCondition,
    LoadBalancerIngress,
    trim_kube_service,
)
from libs.common.contract.node import ApiObject, Node
from libs.common.contract.signing_request import KUBELET_SERVING, SigningRequest, trim_signing_request
from libs.common.json_errors import JSON_ERRORS
from libs.common.kube.errors import AlreadyExists, Invalid, ServerError
from libs.common.kube.events import ObjectEvent, event_body, event_namespace
from libs.common.kube.kube_config import KubeConfig
from libs.common.kube.lease import Lease, read_lease
from libs.common.kube.objects import (
    ConfigMap,
    Item,
    Page,
    Resource,
    UnreadableObject,
    config_map_resource,
    decode_answer,
    encode_config_map,
    namespaced_path,
    read_page,
)
from libs.common.kube.request import Request, build_request, json_patch_body
from libs.common.kube.server_identity import ServerIdentity, fetch_server_identity
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
SERVICES: Final[Resource[KubeService]] = Resource(
    plural="services",
    path="/api/v1/services",
    item=KubeService,
    is_namespaced=True,
    transform=trim_kube_service,
)
# The API server parses the whole Node again to warn of unknown fields, and this client ignores warnings.
# Without that a patch costs the server 7 % less CPU (2.7 instead of 2.95 ms on kube-apiserver 1.36). Nothing
# else changes.
_UNVALIDATED: Final[Mapping[str, str]] = {"fieldValidation": "Ignore"}

_MERGE_PATCH: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
_STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"

Answer = TypeVar("Answer")


class KubeApi:
    """Client of one API server with one identity. Every method raises KubeError and ends by its deadline."""

    def __init__(
        self,
        config: KubeConfig,
        *,
        user_agent: str,
        instance: str = "",
        deadline_seconds: float = DEADLINE_SECONDS,
        connections: int = CONNECTIONS,
        observe: RequestObserver = lambda verb, resource, status, seconds: None,
        on_event: Callable[[ObjectEvent, datetime], None] = lambda event, now: None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Create a client; Events name `instance` as their reporter. Raises KubeConfigError.

        `on_event` is called with each Event that Kubernetes has stored. `jitter` is uniform in [0, 1).
        """
        self.transport = Transport(
            config,
            user_agent=user_agent,
            deadline_seconds=deadline_seconds,
            connections=connections,
            observe=observe,
            jitter=jitter,
        )
        self._instance = instance
        self._on_event = on_event

    def with_own_connections(self, *, connections: int) -> "KubeApi":
        """Return a client with the same identity and its own connections, so neither delays the other."""
        made = copy(self)
        made.transport = replace(self.transport, connections=connections)
        return made

    @property
    def server(self) -> str:
        """The URL of the API server, for messages."""
        return self.transport.config.server

    def problems(self) -> tuple[str, ...]:
        """Return the problems of the client's credentials, in words for /readyz."""
        problem = self.transport.credentials.problem
        return (problem,) if problem else ()

    async def close(self) -> None:
        """Close every connection; requests in flight end with Unreachable."""
        await self.transport.close()

    async def fetch_server_identity(self) -> ServerIdentity:
        """Return the names and addresses in the API server's certificate: one TLS handshake, no request."""
        return await fetch_server_identity(self.transport)

    async def _call(
        self, request: Request, kind: type[Answer], deadline_seconds: float | None = None
    ) -> Answer:
        body = await self.transport.call(request, deadline_seconds=deadline_seconds)
        return decode_answer(body, kind, request)

    # ---- Nodes

    async def get_node(self, name: str) -> Node:
        """Return the current Node from etcd. Raises NotFound."""
        return await self._call(build_request("get", NODES.path, name), Node)

    async def list_nodes(self) -> AsyncIterator[Page[Node]]:
        """Yield pages of all Nodes at one moment, from etcd and never from a cache. Pages may raise Gone."""
        async for page in self._list_all(NODES):
            yield page

    async def patch_node(
        self,
        name: str,
        json_patch: Sequence[dict[str, Any]],
        *,
        is_urgent: bool = False,
        deadline_seconds: float | None = None,
    ) -> Node:
        """Apply a JSON Patch; return the Node after it. Raises FenceFailed, Invalid, NotFound.

        An urgent patch goes before all requests that wait for a connection (RequestQueue).
        """
        request = build_request(
            "patch",
            NODES.path,
            name,
            json_patch_body(json_patch),
            content_type=_JSON_PATCH,
            query=_UNVALIDATED,
            is_urgent=is_urgent,
        )
        return await self._call(request, Node, deadline_seconds)

    async def patch_node_status(self, name: str, strategic_merge: dict[str, Any]) -> Node:
        """Apply a strategic merge patch to nodes/status. Raises FenceFailed, Invalid, NotFound."""
        body = msgspec.json.encode(strategic_merge)
        request = build_request(
            "patch", NODES.path, name, body, subresource="status", content_type=_STRATEGIC_MERGE_PATCH
        )
        return await self._call(request, Node)

    async def delete_node(
        self, name: str, *, uid: str, resource_version: str, deadline_seconds: float | None = None
    ) -> None:
        """Delete exactly this version of the Node. Raises Conflict if it has another version, NotFound.

        Both preconditions are required: an empty one would not fence the deletion.
        """
        if not uid or not resource_version:
            raise Invalid(f"node {name!r} is not deleted without a uid and a resourceVersion")
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        request = build_request("delete", NODES.path, name, msgspec.json.encode(body))
        await self.transport.call(request, deadline_seconds=deadline_seconds)

    # ---- CertificateSigningRequests

    async def patch_signing_request_approval(self, name: str, json_patch: Sequence[dict[str, Any]]) -> None:
        """Apply a JSON Patch to /approval; ignore the response. Raises FenceFailed, Invalid, NotFound.

        A server that is busy is not asked again: the claims of other Nodes may change meanwhile.
        Forbidden names the missing permission: this one, or `approve` on the signer.
        """
        body = json_patch_body(json_patch)
        request = build_request(
            "patch",
            SIGNING_REQUESTS.path,
            name,
            body,
            subresource="approval",
            content_type=_JSON_PATCH,
            is_postponable=False,
        )
        await self.transport.call(request)

    # ---- Services

    async def get_service(self, namespace: str, name: str) -> KubeService:
        """Return the current Service from etcd. Raises NotFound."""
        path = namespaced_path(namespace, SERVICES.plural)
        return await self._call(build_request("get", path, name), KubeService)

    async def patch_service(
        self,
        service: KubeService,
        *,
        finalizers: Sequence[str] | None = None,
        annotations: Mapping[str, str | None] | None = None,
    ) -> KubeService:
        """Replace the finalizers, set these annotations, and remove those that are None.

        Return the Service after it. Raises Conflict if it has another version, NotFound, Invalid.
        """
        changes = {"finalizers": finalizers, "annotations": annotations}
        metadata = {key: value for key, value in changes.items() if value is not None}
        return await self._patch_service(service, {"metadata": metadata})

    async def patch_service_status(
        self,
        service: KubeService,
        *,
        ingress: Sequence[LoadBalancerIngress] | None = None,
        conditions: Sequence[KubeServiceCondition] | None = None,
    ) -> KubeService:
        """Replace the addresses and all conditions, each unless it is None; return the Service after it.

        Raises as `patch_service`.
        """
        status: dict[str, Any] = {}
        if ingress is not None:
            status["loadBalancer"] = {"ingress": msgspec.to_builtins(ingress)}
        if conditions is not None:
            status["conditions"] = msgspec.to_builtins(conditions)
        return await self._patch_service(service, {"status": status}, subresource="status")

    async def _patch_service(
        self, service: KubeService, merge_patch: dict[str, Any], *, subresource: str = ""
    ) -> KubeService:
        fence = {"uid": service.uid, "resourceVersion": service.metadata.resource_version}
        if not all(fence.values()):
            raise Invalid(f"service {service.key!r} is not patched without a uid and a resourceVersion")
        metadata = {**merge_patch.get("metadata", {}), **fence}
        request = build_request(
            "patch",
            namespaced_path(service.metadata.namespace, SERVICES.plural),
            service.name,
            msgspec.json.encode({**merge_patch, "metadata": metadata}),
            subresource=subresource,
            content_type=_MERGE_PATCH,
        )
        return await self._call(request, KubeService)

    # ---- Namespaces

    async def get_namespace(self, name: str) -> ApiObject:
        """Return the metadata of a Namespace. Raises NotFound."""
        return await self._call(build_request("get", "/api/v1/namespaces", name), ApiObject)

    # ---- ConfigMaps

    async def list_config_maps(
        self, namespace: str, labels: Mapping[str, str]
    ) -> AsyncIterator[Page[ConfigMap]]:
        """Yield pages of the ConfigMaps with all these labels at one moment, from etcd. May raise Gone."""
        async for page in self._list_all(config_map_resource(namespace, labels)):
            yield page

    async def get_config_map(self, namespace: str, name: str) -> ConfigMap:
        """Return the current ConfigMap from etcd. Raises NotFound."""
        path = namespaced_path(namespace, "configmaps")
        return await self._call(build_request("get", path, name), ConfigMap)

    async def create_config_map(self, namespace: str, config_map: ConfigMap) -> ConfigMap:
        """Create a ConfigMap; return it. Raises AlreadyExists, Invalid."""
        return await self._write_config_map("create", namespace, config_map)

    async def update_config_map(self, namespace: str, config_map: ConfigMap) -> ConfigMap:
        """Replace the version with its resourceVersion; return the new ConfigMap.

        Raises Conflict if the version has changed, NotFound if the ConfigMap does not exist, Invalid.
        """
        return await self._write_config_map("update", namespace, config_map)

    async def _write_config_map(self, verb: str, namespace: str, config_map: ConfigMap) -> ConfigMap:
        path, body = namespaced_path(namespace, "configmaps"), encode_config_map(config_map)
        return await self._call(build_request(verb, path, config_map.metadata.name, body), ConfigMap)

    # ---- Events

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> None:
        """Create an Event, unless the same one was created in this minute. `now` is in UTC."""
        body = msgspec.json.encode(event_body(event, instance=self._instance, now=now))
        path = namespaced_path(event_namespace(event.regarding), "events")
        with suppress(AlreadyExists):  # such as after a lost answer
            await self.transport.call(build_request("create", path, event.regarding.name, body))
        self._on_event(event, now)

    # ---- Leases

    async def get_lease(self, namespace: str, name: str, *, deadline_seconds: float | None = None) -> Lease:
        """Return the Lease. Raises NotFound."""
        return await self._lease("get", namespace, name, deadline_seconds)

    async def write_lease(self, document: dict[str, Any], *, deadline_seconds: float | None = None) -> Lease:
        """Replace the version that the document names, or create the Lease if it names none; return it.

        Raises Conflict if the Lease has changed or exists.
        """
        metadata, body = document["metadata"], msgspec.json.encode(document)
        verb, name = ("update", metadata["name"]) if metadata.get("resourceVersion") else ("create", "")
        return await self._lease(verb, metadata["namespace"], name, deadline_seconds, body)

    async def _lease(
        self, verb: str, namespace: str, name: str, deadline_seconds: float | None, body: bytes | None = None
    ) -> Lease:
        path = namespaced_path(namespace, "leases", api="/apis/coordination.k8s.io/v1")
        request = build_request(verb, path, name, body)
        answer = await self.transport.call(request, deadline_seconds=deadline_seconds)
        try:
            return read_lease(answer)
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

    async def _list_all(self, resource: Resource[Item]) -> AsyncIterator[Page[Item]]:
        token = ""
        while True:
            page = await self.list_page(resource, continue_token=token, on_unreadable=raise_unreadable)
            yield page
            token = page.continue_token
            if not token:
                return


def raise_unreadable(unreadable: UnreadableObject) -> None:
    """Raise ServerError: for callers that need every object, because an incomplete list would be wrong."""
    raise ServerError(f"{unreadable.resource} {unreadable.name!r} cannot be parsed: {unreadable.reason}")
