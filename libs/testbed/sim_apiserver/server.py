"""The simulated API server over HTTPS on the loopback, with the same interface as the real control plane."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from libs.testbed.container_commands import ContainerCommands
from libs.testbed.control_plane.audit_log import AuditedRequest
from libs.testbed.kube_credentials import API_SERVER_HOSTS, KubeCredentials
from libs.testbed.loopback_site import LoopbackSite
from libs.testbed.pki import make_server_context
from libs.testbed.ports import allocate_port
from libs.testbed.sim_apiserver.api import SimApi
from libs.testbed.sim_apiserver.api_request import ApiRequest, parse_number, parse_request
from libs.testbed.sim_apiserver.authorization import ANONYMOUS, impersonate
from libs.testbed.sim_apiserver.discovery import wants_table
from libs.testbed.sim_apiserver.faults import (
    FaultRules,
    apply_fault,
    make_refusal_response,
    open_watch_response,
)
from libs.testbed.sim_apiserver.refusals import Refusal, not_simulated
from libs.testbed.sim_apiserver.resource_kind import Identity
from libs.testbed.sim_apiserver.watch_stream import WatchStream

_BODY_LIMIT = 3 * 1024 * 1024  # bytes


def _make_uid() -> str:
    return str(uuid.uuid4())


class SimApiServer:
    """One server; its objects survive a stop."""

    def __init__(
        self, run_dir: Path, *, has_node_lifecycle: bool = False, new_uid: Callable[[], str] = _make_uid
    ) -> None:
        self.faults = FaultRules()
        self.containers = ContainerCommands()  # the containers of all pods, for exec
        self.api = SimApi(
            now=lambda: datetime.now(UTC),
            new_uid=new_uid,
            has_node_lifecycle=has_node_lifecycle,
        )
        self._port = allocate_port()
        self.server = f"https://127.0.0.1:{self._port}"
        self.credentials = KubeCredentials(run_dir, self.server)
        self.ca_file = self.credentials.ca_file
        self.kubeconfig = self.credentials.kubeconfig
        self.ssl_context = self.credentials.ssl_context
        self._signs = True
        self._audit: list[AuditedRequest] = []
        self._site: LoopbackSite | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls, run_dir: Path, *, has_node_lifecycle: bool = False, new_uid: Callable[[], str] = _make_uid
    ) -> AsyncIterator[SimApiServer]:
        """Start a server with its credentials in `run_dir`.

        `has_node_lifecycle`: a Node that becomes Ready loses its not-ready taint.
        """
        server = cls(run_dir, has_node_lifecycle=has_node_lifecycle, new_uid=new_uid)
        await server.resume()
        try:
            yield server
        finally:
            await server.stop()

    def issue_token(self, user: str, groups: Sequence[str] = ()) -> str:
        """Return a token of `user` in `groups`, for token reviews."""
        token = f"token-{uuid.uuid4()}"
        self.api.tokens[token] = Identity(user, (*groups, "system:authenticated"))
        return token

    def revoke_token(self, token: str) -> None:
        """Let a token expire."""
        del self.api.tokens[token]

    def audit_mark(self) -> int:
        """Return the number of answered requests."""
        return len(self._audit)

    def audit_counts(self, since: int = 0) -> Counter[AuditedRequest]:
        """Count requests since a mark; a watch counts when it opens."""
        return Counter(self._audit[since:])

    def stop_signer(self) -> None:
        """Stop signing approved requests."""
        self._signs = False

    def start_signer(self) -> None:
        """Sign the requests that were approved meanwhile, and all later ones."""
        self._signs = True
        self.api.sign_approved(self.credentials.authority)

    async def resume(self) -> None:
        """Listen, on the same port and with the same objects as before a stop."""
        pair = self.credentials.authority.issue_server(API_SERVER_HOSTS)
        files = pair.write(self.credentials.run_dir, "apiserver")
        context = make_server_context(*files, client_authority=self.ca_file)
        runner = web.ServerRunner(
            web.Server(self._handle, handler_cancellation=True, access_log=None), shutdown_timeout=0.1
        )
        self._site = await LoopbackSite.start(runner, "127.0.0.1", self._port, tls=context)

    async def stop(self) -> None:
        """Close all connections and stop listening; `resume` starts again with the same objects."""
        if self._site is not None:
            await self._site.stop()
            self._site = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = parse_request(
            request.method,
            request.path,
            request.query,
            as_table=wants_table(request.headers.get("Accept", "")),
        )
        identity = _certified(request)
        try:
            fault = self.faults.match_request(asked.verb, asked.resource)
            if fault is not None:
                return await apply_fault(fault, request, is_watch=asked.verb == "watch")
            groups = request.headers.getall("Impersonate-Group", [])
            identity = impersonate(identity, request.headers, groups)
            if asked.verb == "watch":
                return await self._watch(request, identity, asked)
            if asked.subresource == "exec":
                return await self._exec(request, identity, asked)
            if asked.subresource == "log":
                return self._read_log(request, identity, asked)
            answer = self.api.handle(identity, asked, await _body(request), request.content_type)
            if asked.subresource == "approval" and self._signs:
                self.api.sign_approved(self.credentials.authority)
        except Refusal as refusal:
            self._count(identity, asked, refusal.code)
            return make_refusal_response(refusal)
        self._count(identity, asked, answer.code)
        return web.Response(status=answer.code, body=answer.body, content_type=answer.content_type)

    async def _watch(
        self, request: web.BaseRequest, identity: Identity, asked: ApiRequest
    ) -> web.StreamResponse:
        watch = WatchStream(self.api, identity, asked)
        self._count(identity, asked, 200)
        response = await open_watch_response(request)
        with contextlib.suppress(ConnectionError):  # the client disconnected
            await watch.stream_events(response)
        return response

    async def _exec(
        self, request: web.BaseRequest, identity: Identity, asked: ApiRequest
    ) -> web.StreamResponse:
        named = request.query.get("container", "")
        container = self.api.find_container(identity, asked, named, verbs=("get", "create"))
        self._count(identity, asked, 101)
        return await self.containers.run(request, asked.namespace, asked.name, container)

    def _read_log(
        self, request: web.BaseRequest, identity: Identity, asked: ApiRequest
    ) -> web.StreamResponse:
        for name in request.query.keys() - {"container", "tailLines"}:
            raise not_simulated(f"query parameter {name} of pods/log", name)
        container = self.api.find_container(identity, asked, request.query.get("container", ""))
        lines = parse_number(asked, "tailLines") if "tailLines" in request.query else None
        self._count(identity, asked, 200)
        text = self.containers.read_log(asked.namespace, asked.name, container, lines)
        return web.Response(body=text, content_type="text/plain")

    def _count(self, identity: Identity, asked: ApiRequest, code: int) -> None:
        self._audit.append(
            AuditedRequest(identity.user, asked.verb, asked.resource, code < 400, forbidden=code == 403)
        )


def read_certified_user(request: web.BaseRequest) -> tuple[str, tuple[str, ...]]:
    """Return the common name and the organizations of the client certificate; "" without one."""
    certificate = request.get_extra_info("peercert") or {"subject": ()}
    names = [pair for part in certificate["subject"] for pair in part]
    user = next((value for key, value in names if key == "commonName"), "")
    return user, tuple(value for key, value in names if key == "organizationName")


def _certified(request: web.BaseRequest) -> Identity:
    user, groups = read_certified_user(request)
    return Identity(user, (*groups, "system:authenticated")) if user else ANONYMOUS


async def _body(request: web.BaseRequest) -> bytes:
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > _BODY_LIMIT:
            raise Refusal(413, "RequestEntityTooLarge", f"Request entity too large: limit is {_BODY_LIMIT}")
    return bytes(body)
