"""An HTTP proxy in front of kube-apiserver that can answer in its place, by rules for verbs and resources."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.loopback_site import LoopbackSite
from libs.testbed.pki import make_server_context
from libs.testbed.ports import allocate_port
from libs.testbed.sim_apiserver.api_request import parse_request
from libs.testbed.sim_apiserver.faults import (
    ExpiredFault,
    FaultRules,
    ServerFault,
    apply_fault,
    end_watch,
    make_refusal_response,
)
from libs.testbed.sim_apiserver.refusals import Refusal
from libs.testbed.sim_apiserver.server import SimApiServer, read_certified_user

_LONGEST_LINE_BYTES: Final = 2**22  # one event of a watch
_SMALL_PAGE: Final = 5  # objects: a list needs several pages, so a later one can expire
_PER_CONNECTION: Final = ("Connection", "Host", "Content-Length", "Keep-Alive", "Transfer-Encoding")
_CHOSEN_BY_AIOHTTP: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_Client = tuple[str, str, tuple[str, ...]]  # source address, user and groups


ApiServer = ControlPlane | SimApiServer  # beside its `ca_file` are `apiserver.crt` and `apiserver.key`


class ApiProxy:
    """One listener with the certificate of the server behind it.

    The server sees each client with its own address, certificate and token.
    """

    def __init__(self, behind: ApiServer) -> None:
        self.port = allocate_port()
        self.server = f"https://127.0.0.1:{self.port}"
        self._behind = behind
        self._faults = FaultRules()
        self._sessions: dict[_Client, aiohttp.ClientSession] = {}
        self._watch_faults: dict[asyncio.Future[ServerFault], None] = {}  # one for each open watch

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, behind: ApiServer) -> AsyncIterator["ApiProxy"]:
        """Listen on the loopback during the block."""
        proxy = cls(behind)
        server = web.Server(proxy._handle, handler_cancellation=True, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=0.1)
        files = (behind.ca_file.with_name(f"apiserver.{kind}") for kind in ("crt", "key"))
        tls = make_server_context(*files, client_authority=behind.ca_file)  # others send a token
        site = await LoopbackSite.start(runner, "127.0.0.1", proxy.port, tls=tls)
        try:
            yield proxy
        finally:
            await site.stop()
            for session in proxy._sessions.values():
                await session.close()

    def inject(self, fault: ServerFault, *, verbs: Sequence[str] = ("",), every: int = 1) -> None:
        """Answer every so many requests of these verbs with the fault. It also ends the open watches."""
        for verb in verbs:
            self._faults.inject(fault, verb=verb, every=every)
        if "watch" in verbs:
            for ending in self._watch_faults:
                ending.set_result(fault)
            self._watch_faults.clear()

    def heal(self) -> None:
        """Forward all requests. A watch that is silent stays so until its client disconnects."""
        self._faults.clear()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        parsed = parse_request(request.method, request.path, request.query)
        is_watch = parsed.verb == "watch"
        fault = self._faults.match_request(parsed.verb, parsed.resource)
        limit = 0
        if isinstance(fault, ExpiredFault) and parsed.verb == "list" and "continue" not in request.query:
            fault, limit = None, _SMALL_PAGE  # only a later page can expire
        try:
            if fault is not None:
                return await apply_fault(fault, request, is_watch=is_watch)
            return await self._forward(request, limit=limit, is_watch=is_watch)
        except Refusal as refusal:
            return make_refusal_response(refusal)
        except (aiohttp.ClientError, ConnectionError):  # the server ended the connection: so does the proxy
            if request.transport is not None:
                request.transport.abort()
            return web.Response()

    async def _forward(self, request: web.BaseRequest, *, limit: int, is_watch: bool) -> web.StreamResponse:
        target = URL(self._behind.server + request.raw_path, encoded=True)
        async with self._open_session(request).request(
            request.method,
            target.update_query(limit=limit) if limit else target,
            headers=_copy_headers(request.headers),
            data=await request.read() or None,
            allow_redirects=False,
        ) as answer:
            headers = _copy_headers(answer.headers)
            if not is_watch or answer.status != 200:
                return web.Response(status=answer.status, headers=headers, body=await answer.read())
            response = web.StreamResponse(headers=headers)
            await response.prepare(request)
            await self._forward_watch(answer, response)
            return response

    async def _forward_watch(self, answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        """Forward whole lines until the server, the client or a fault ends the watch."""
        ending: asyncio.Future[ServerFault] = asyncio.get_running_loop().create_future()
        self._watch_faults[ending] = None
        forwarding = asyncio.create_task(_forward_lines(answer, response))
        try:
            await asyncio.wait((forwarding, ending), return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                return await forwarding
        finally:
            self._watch_faults.pop(ending, None)
            forwarding.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)
        await end_watch(ending.result(), response)
        return None

    def _open_session(self, request: web.BaseRequest) -> aiohttp.ClientSession:
        """The connections of that client: with its address, and its certificate if it has one."""
        client = (request.remote or "127.0.0.1", *read_certified_user(request))
        if client not in self._sessions:
            source, user, groups = client
            connector = aiohttp.TCPConnector(
                limit=0, local_addr=(source, 0), ssl=self._behind.ssl_context(user, groups)
            )
            self._sessions[client] = aiohttp.ClientSession(
                connector=connector,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_LONGEST_LINE_BYTES,
                skip_auto_headers=_CHOSEN_BY_AIOHTTP,
                timeout=aiohttp.ClientTimeout(),  # the clients have their own
            )
        return self._sessions[client]


async def _forward_lines(answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
    async for line in answer.content:
        await response.write(line)


def _copy_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    kept = ((name, value) for name, value in headers.items() if name.title() not in _PER_CONNECTION)
    return CIMultiDict(kept)
