"""Nodes that join as kubelets do: with a node's identity, under the Node authorizer and NodeRestriction."""

from __future__ import annotations

import asyncio
import contextlib
import io
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

import aiohttp
import msgspec

from libs.common.contract.signing_request import KUBELET_SERVING, NODE_USER_PREFIX, NODES_GROUP
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.kubelet_node import (
    SimKubelet,
    build_heartbeat_status,
    build_node_lease,
    build_not_ready_status,
    build_ready_status,
    build_registered_node,
    build_unreachable_status,
)
from libs.testbed.signing_requests import (
    APPROVED,
    CSRS,
    SERVING_USAGES,
    SigningOutcome,
    build_signing_request,
    make_request_pem,
    read_outcome,
)

__all__ = ["ApiServer", "HttpResponse", "KubeletFleet", "RequestRejected", "SigningOutcome", "SimKubelet"]

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
NODE_GROUPS = (NODES_GROUP, "system:authenticated")

_NODES = "/api/v1/nodes"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_LINE_LIMIT = 2**22  # bytes of a watch event: hostile requests are large
_TIMEOUT = aiohttp.ClientTimeout(total=60)


class ApiServer(Protocol):
    """The interface of ControlPlane and SimApiServer that is used here."""

    server: str

    def ssl_context(self) -> ssl.SSLContext:
        """Return an admin's identity, which must be allowed to impersonate nodes."""
        ...


class HttpResponse(NamedTuple):
    """An HTTP status and the decoded body."""

    status: int
    body: Any


class RequestRejected(RuntimeError):
    """The API server rejected a request."""

    def __init__(self, what: str, answer: HttpResponse) -> None:
        self.response = answer
        super().__init__(f"{what}: {answer.status} {answer.body.get('message', answer.body)}")


class KubeletFleet:
    """Any number of kubelets over one connection pool, at most `concurrency` requests at a time."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session = session
        self._server = server

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, api: ApiServer, *, concurrency: int = 64) -> AsyncIterator[KubeletFleet]:
        """Impersonate nodes at this API server, as its admin."""
        connector = aiohttp.TCPConnector(ssl=api.ssl_context(), limit=concurrency)
        async with aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT) as session:
            yield cls(session, api.server)

    async def join(self, kubelet: SimKubelet) -> Any:
        """Create the Node (not ready, tainted), make it Ready, and return it. Raises RequestRejected."""
        now = datetime.now(UTC)
        await self.send("POST", _NODES, as_node=kubelet.name, body=build_registered_node(kubelet, now))
        return await self._patch_status(kubelet.name, build_ready_status(now))

    async def join_all(self, kubelets: Iterable[SimKubelet]) -> list[Any]:
        """Join all kubelets concurrently; the first rejection cancels the others."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.join(kubelet)) for kubelet in kubelets]
        return [task.result() for task in tasks]

    async def heartbeat(self, name: str) -> None:
        """Report the conditions with a new time, and renew the node's Lease."""
        now = datetime.now(UTC)
        await self._patch_status(name, build_heartbeat_status(now))
        wanted = build_node_lease(name, now)
        lease = f"{_LEASES}/{name}"
        renewed = await self.request("PATCH", lease, as_node=name, body=wanted, content_type=MERGE)
        if renewed.status == HTTPStatus.NOT_FOUND:
            await self.send("POST", _LEASES, as_node=name, body=wanted)
        elif renewed.status != HTTPStatus.OK:
            raise RequestRejected(f"PATCH {lease}", renewed)

    @contextlib.asynccontextmanager
    async def keep_heartbeats(self, *names: str, every_seconds: float = 1.0) -> AsyncIterator[None]:
        """Send heartbeats of these nodes while the block runs; a deleted node stops.

        Raises RequestRejected at the end if a heartbeat was rejected for another reason.
        """
        beating = asyncio.gather(*(self._send_heartbeats(name, every_seconds) for name in names))
        try:
            yield
        finally:
            beating.cancel()
            (ended,) = await asyncio.gather(beating, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended

    async def _send_heartbeats(self, name: str, every_seconds: float) -> None:
        while True:
            try:
                await self.heartbeat(name)
            except RequestRejected as rejected:
                if rejected.response.status != HTTPStatus.NOT_FOUND:
                    raise
                return
            await asyncio.sleep(every_seconds)

    async def set_ready(self, name: str) -> None:
        """Report Ready, as a kubelet does that has come back."""
        await self._patch_status(name, build_ready_status(datetime.now(UTC)))

    async def set_not_ready(self, name: str) -> None:
        """Report not Ready, as a running kubelet does."""
        await self._patch_status(name, build_not_ready_status(datetime.now(UTC)))

    async def set_unreachable(self, name: str, *, ago: timedelta = timedelta(0)) -> None:
        """Write the status of a silent kubelet; only the real control plane would write it itself."""
        await self._patch_status(name, build_unreachable_status(datetime.now(UTC) - ago))

    async def request_certificate(
        self,
        kubelet: SimKubelet,
        *,
        ips: Sequence[str] | None = None,
        dns: Sequence[str] | None = None,
        expiration_seconds: int | None = None,
    ) -> str:
        """Create a kubelet-serving CSR and return its name; None = the kubelet's own IPs and name."""
        pem = make_request_pem(
            common_name=f"{NODE_USER_PREFIX}{kubelet.name}",
            dns=[kubelet.name] if dns is None else dns,
            ips=kubelet.ips if ips is None else ips,
        )
        return await self.file_request(
            pem, user=f"{NODE_USER_PREFIX}{kubelet.name}", expiration_seconds=expiration_seconds
        )

    async def file_request(
        self,
        pem: bytes,
        *,
        user: str,
        groups: Sequence[str] = NODE_GROUPS,
        usages: Sequence[str] = SERVING_USAGES,
        expiration_seconds: int | None = None,
        signer: str = KUBELET_SERVING,
    ) -> str:
        """Create any request as this user with these groups; return its name. Raises RequestRejected."""
        body = build_signing_request(pem, usages=usages, expiration_seconds=expiration_seconds, signer=signer)
        filed = await self.send("POST", CSRS, as_user=user, as_groups=groups, body=body)
        return str(filed["metadata"]["name"])

    async def approve(self, name: str) -> None:
        """Approve the request as an admin, without any check. Raises RequestRejected."""
        operation = {"op": "add", "path": "/status/conditions", "value": [APPROVED]}
        await self.send("PATCH", f"{CSRS}/{name}/approval", body=[operation], content_type=JSON_PATCH)

    async def wait_for_outcome(self, name: str, *, seconds: float = HANG_SECONDS) -> SigningOutcome:
        """Watch the request until it is issued, denied or failed.

        Raises TimeoutError, or RequestRejected if the request is deleted.
        """
        outcome = SigningOutcome()
        try:
            async with (
                asyncio.timeout(seconds),
                contextlib.aclosing(self._watch_object(CSRS, name)) as states,
            ):
                async for state in states:
                    outcome = read_outcome(state)
                    if outcome.is_final:
                        break
        except TimeoutError as error:
            raise TimeoutError(f"request {name} after {seconds:g} s: {outcome}") from error
        return outcome

    async def delete_node(self, name: str) -> None:
        """Delete the Node as an admin; a missing Node is no error."""
        await self.send("DELETE", f"{_NODES}/{name}", also=HTTPStatus.NOT_FOUND)

    async def request(
        self,
        method: str,
        path: str,
        *,
        as_node: str | None = None,
        as_user: str | None = None,
        as_groups: Sequence[str] = (),
        body: Any = None,
        content_type: str = JSON,
    ) -> HttpResponse:
        """Send one request and return the response, whatever its status.

        It acts as this node, as this user with these groups, or else as admin.
        """
        if as_node is not None:
            as_user, as_groups = f"{NODE_USER_PREFIX}{as_node}", NODE_GROUPS
        headers = [("Content-Type", content_type), ("Accept", JSON)]
        headers += [("User-Agent", "kubelet/v1.36.3")] if as_node is not None else []
        if as_user is not None:
            headers.append(("Impersonate-User", as_user))
            headers += [("Impersonate-Group", group) for group in as_groups]
        # Not bytes: aiohttp warns of large ones, and hostile requests are large.
        data = None if body is None else io.BytesIO(msgspec.json.encode(body))
        async with self._session.request(method, self._server + path, data=data, headers=headers) as answer:
            text = await answer.read()
        if "json" in answer.headers.get("Content-Type", ""):
            return HttpResponse(answer.status, msgspec.json.decode(text))
        return HttpResponse(answer.status, {"message": text.decode(errors="replace")})

    async def send(self, method: str, path: str, *, also: int = HTTPStatus.OK, **options: Any) -> Any:
        """Send one request as `request` does, and return the decoded body.

        Raises RequestRejected for another status than 200, 201 and `also`.
        """
        answer = await self.request(method, path, **options)
        if answer.status not in {HTTPStatus.OK, HTTPStatus.CREATED, also}:
            raise RequestRejected(f"{method} {path}", answer)
        return answer.body

    async def _patch_status(self, name: str, status: Mapping[str, Any]) -> Any:
        path, body = f"{_NODES}/{name}/status", {"status": status}
        return await self.send("PATCH", path, as_node=name, body=body, content_type=STRATEGIC)

    async def _watch_object(self, path: str, name: str) -> AsyncGenerator[Any]:
        """Yield every state of one object, beginning with the present one.

        Raises RequestRejected when it is deleted.
        """
        found = await self.send("GET", f"{path}/{name}")
        yield found
        version = found["metadata"]["resourceVersion"]
        query = {"watch": "1", "fieldSelector": f"metadata.name={name}", "resourceVersion": version}
        url = self._server + path
        async with self._session.get(url, params=query, read_bufsize=_LINE_LIMIT) as answer:
            async for line in answer.content:
                event = msgspec.json.decode(line)
                if event["type"] in {"DELETED", "ERROR"}:
                    last = HttpResponse(answer.status, event["object"])
                    raise RequestRejected(f"{path}/{name} is not watched any more", last)
                yield event["object"]
        raise TimeoutError  # the server ended the watch
