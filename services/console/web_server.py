"""Serves the page, the state as JSON, and its changes as server-sent events."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import msgspec
from aiohttp import web

from libs.common.bus.protocol import BusError, UnreadablePayload
from libs.common.contract.events import Event
from libs.common.contract.subjects import ENRICHED_NODE, OBSERVED_NODE, is_publishable_name
from libs.common.service.listener import Limits
from libs.common.service.service import Dependencies
from libs.common.service.serving_certificate import ServingCertificate
from libs.common.service.web_listener import WebListener
from services.console.core.console_state import ConsoleState, Frame
from services.console.follower import ConsoleFollower
from services.console.login.guarded_pages import GuardedPages
from services.console.login.login_pages import FORM_BYTES, LoginPages
from services.console.login.request_guard import RESPONSE_HEADERS
from services.console.login.session_keeper import LoginRefusal, SessionKeeper
from services.console.login.sessions import LIFETIME_SECONDS
from services.console.settings import ConsoleSettings

log = logging.getLogger(__name__)

_CHANGE_SECONDS: Final = 0.25  # between two messages of a stream that has changes
_HEARTBEAT_SECONDS: Final = 1.0  # between two messages of a stream without changes
_WRITE_SECONDS: Final = 30.0  # a client that reads nothing for that long is disconnected
# A page has few connections, and its event stream ends with the session at the latest.
_LIMITS: Final = Limits(connections=128, connection_seconds=LIFETIME_SECONDS)
_ASSETS: Final = {
    "/": ("index.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/app.css": ("app.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_encode = msgspec.json.Encoder().encode


class Exposure(msgspec.Struct, frozen=True):
    """What an exposed console needs: a certificate and sessions."""

    certificate: ServingCertificate
    keeper: SessionKeeper


@dataclass(eq=False)
class WebServer:
    """Serves until `stop`; without an exposure to everyone who reaches it."""

    state: ConsoleState
    follower: ConsoleFollower
    dependencies: Dependencies
    settings: ConsoleSettings
    exposure: Exposure | None = None

    def __post_init__(self) -> None:
        self._listener: WebListener | None = None
        self._streams = asyncio.Semaphore(_LIMITS.connections // 2)  # the rest serves pages and the login
        self._guard = GuardedPages()

    async def start(self, address: str, port: int) -> int:
        """Listen; return the port. Raises SettingsError if the server cannot listen."""
        assets = files("services.console") / "assets"
        login = None
        if self.exposure is not None:
            login = LoginPages(self.exposure.keeper, (assets / "login.html").read_text(), "talos-ccm-console")
            self._guard = GuardedPages(self.settings.hosts, login)
        application = web.Application(middlewares=[self._guard.check], client_max_size=FORM_BYTES)
        if login is not None:
            login.add_to(application)
        for path, (name, content_type) in _ASSETS.items():
            application.router.add_get(path, _serve_asset((assets / name).read_bytes(), content_type))
        application.router.add_get("/api/state", self._serve_state)
        application.router.add_get("/api/settings", self._serve_settings)
        application.router.add_get("/api/events", self._serve_events)
        application.router.add_get("/api/nodes/{name}", self._serve_node)
        certificate = self.exposure.certificate if self.exposure else None
        self._listener = WebListener(application, certificate, limits=_LIMITS)
        listening = await self._listener.start(address, port, flag="--console-port")
        log.info(
            "serving console", extra={"url": f"http{'s' if certificate else ''}://{address}:{listening}/"}
        )
        return listening

    async def stop(self) -> None:
        """Stop the server and close its connections."""
        if self._listener is not None:
            await self._listener.stop()

    async def _serve_state(self, request: web.Request) -> web.Response:
        return _respond(self._build_frame(0, 0.0))

    async def _serve_settings(self, request: web.Request) -> web.Response:
        namespace, traces = self.settings.namespace, self.settings.trace_url_template
        return _respond({"namespace": namespace, "traces": traces, "user": self._guard.find_user(request)})

    async def _serve_node(self, request: web.Request) -> web.Response:
        """Everything about one Node; its last messages are read from the stream."""
        name, detail = request.match_info["name"], None
        if is_publishable_name(name):
            observed, machine = await asyncio.gather(
                self._fetch_event(f"{OBSERVED_NODE}.{name}"), self._fetch_event(f"{ENRICHED_NODE}.{name}")
            )
            now = self.dependencies.now().timestamp()
            detail = self.state.build_detail(name, now, observed=observed, machine=machine)
        if detail is None:
            return web.Response(status=404, text="The stream has no Node of this name.\n")
        return _respond(detail)

    async def _fetch_event(self, subject: str) -> Event | None:
        try:
            message = await self.dependencies.bus.get_last(subject)
        except BusError as error:
            log.debug("cannot read message", extra={"subject": subject, "error": str(error)})
            return None
        return None if message is None or isinstance(message.event, UnreadablePayload) else message.event

    def _build_frame(self, since: int, history_after: float) -> Frame:
        heartbeat = self.follower.cache.seconds_since_leader_heartbeat()
        now, problems = self.dependencies.now().timestamp(), self.follower.problems()
        return self.state.build_frame(
            since, now, heartbeat_seconds=heartbeat, problems=problems, history_after=history_after
        )

    async def _serve_events(self, request: web.Request) -> web.StreamResponse:
        if self._streams.locked():
            return web.Response(status=503, text="Too many open pages.\n")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **RESPONSE_HEADERS})
        try:
            async with self._streams:
                await response.prepare(request)
                await self._send_frames(request, response)
        except (ConnectionError, TimeoutError):
            log.debug("client of console is gone")
        return response

    async def _send_frames(self, request: web.Request, response: web.StreamResponse) -> None:
        """Send everything, then the changes, at the pace of the client, until its session ends."""
        version, history_after, silent = 0, 0.0, _HEARTBEAT_SECONDS
        while not isinstance(self._guard.find_user(request), LoginRefusal):
            if silent >= _HEARTBEAT_SECONDS or self.state.version != version:
                frame = self._build_frame(version, history_after)
                version, silent = frame.version, 0.0
                history_after = frame.history[-1].at if frame.history else history_after
                async with asyncio.timeout(_WRITE_SECONDS):
                    await response.write(b"data: " + _encode(frame) + b"\n\n")
            await asyncio.sleep(_CHANGE_SECONDS)
            silent += _CHANGE_SECONDS


def _respond(content: object) -> web.Response:
    return web.Response(body=_encode(content), content_type="application/json")


def _serve_asset(body: bytes, content_type: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def serve(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8")

    return serve
