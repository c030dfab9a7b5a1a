"""An API server that misbehaves as told, and a reflector of Nodes with what it has told so far."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from aiohttp import web

from libs.common.contract.node import Node
from libs.common.kube.api import NODES, KubeApi
from libs.common.kube.load_kube_config import load_kube_config
from libs.common.kube.objects import UnreadableObject
from libs.common.kube.reflector import Reflector
from libs.common.kube.watch_events import Changed, Deleted, ListSnapshot, WatchEvent
from libs.testbed.loopback_site import LoopbackSite
from tests.bus_actors import run_during

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class LoopbackServer:
    """Answers each request with `answer`; remembers what was asked."""

    def __init__(self) -> None:
        self.requests: list[web.Request] = []
        self.answer: Answer = respond_not_found
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        return await self.answer(request)

    @classmethod
    @asynccontextmanager
    async def start(cls) -> AsyncIterator["LoopbackServer"]:
        loopback = cls()
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", loopback.handle)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
        site = await LoopbackSite.start(runner, "127.0.0.1")
        loopback.url = f"http://127.0.0.1:{site.port}"
        try:
            yield loopback
        finally:
            await site.stop()


@asynccontextmanager
async def open_api(
    url: str, folder: Path, user: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[KubeApi]:
    """A KubeApi for that address, by a kubeconfig in `folder`."""
    path = folder / "kubeconfig"
    path.write_bytes(
        msgspec.yaml.encode(
            {
                "current-context": "loopback",
                "clusters": [{"name": "loopback", "cluster": {"server": url}}],
                "users": [{"name": "me", "user": user or {}}],
                "contexts": [{"name": "loopback", "context": {"cluster": "loopback", "user": "me"}}],
            }
        )
    )
    async with open_api_by(path, **options) as api:
        yield api


@asynccontextmanager
async def open_api_by(kubeconfig: Path, **options: Any) -> AsyncIterator[KubeApi]:
    """A KubeApi for the server and the user of that kubeconfig."""
    config = load_kube_config(kubeconfig, {"PATH": "/usr/bin:/bin"})
    api = KubeApi(config, user_agent="talos-ccm/test", **options)
    try:
        yield api
    finally:
        await api.close()


async def respond_not_found(request: web.Request) -> web.StreamResponse:
    return respond_error(404, "NotFound")


def respond_error(
    status: int,
    reason: str,
    message: str = "no",
    headers: dict[str, str] | None = None,
    details: dict[str, Any] | None = None,
) -> web.Response:
    body = {"kind": "Status", "code": status, "reason": reason, "message": message, "details": details or {}}
    return web.json_response(body, status=status, headers=headers)


def make_node_object(name: str, version: int = 1, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"kind": "Node", "apiVersion": "v1", "metadata": metadata, "spec": {}, "status": {}} | more


async def respond_node(request: web.Request) -> web.StreamResponse:
    return web.json_response(make_node_object("web-1"))


def respond_list(*items: dict[str, Any], version: int = 100, token: str = "") -> web.Response:
    metadata = {"resourceVersion": str(version)} | ({"continue": token} if token else {})
    return web.json_response(
        {"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": list(items)}
    )


def encode_event(kind: str, subject: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": kind, "object": subject}) + b"\n"


def encode_bookmark(version: int) -> bytes:
    return encode_event("BOOKMARK", {"kind": "Node", "metadata": {"resourceVersion": str(version)}})


def encode_error(code: int, reason: str, details: dict[str, Any] | None = None) -> bytes:
    status = {"kind": "Status", "code": code, "reason": reason, "message": "told in the watch"}
    return encode_event("ERROR", status | {"details": details or {}})


async def respond_stream(
    request: web.Request, lines: Iterable[bytes] = (), *, stays_open: bool = False
) -> web.StreamResponse:
    """A watch that says these lines and ends, or stays open without another word."""
    response = web.StreamResponse()
    await response.prepare(request)
    for line in lines:
        await response.write(line)
    if stays_open:
        await asyncio.Event().wait()
    return response


def listing(*items: dict[str, Any], version: int = 100, token: str = "") -> Answer:
    """Answer with that list."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return respond_list(*items, version=version, token=token)

    return answer


def refusal(status: int, reason: str = "Busy", message: str = "no", **more: Any) -> Answer:
    """Answer with that error."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return respond_error(status, reason, message, **more)

    return answer


def stream(*lines: bytes, stays_open: bool = False) -> Answer:
    """Answer with a watch that says these lines."""
    return partial(respond_stream, lines=lines, stays_open=stays_open)


async def hang(request: web.Request) -> NoReturn:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def get_kind(request: web.Request) -> str:
    """Which kind of request the reflector sent: "list", "watch" or "check" (of the version)."""
    return "watch" if "watch" in request.query else "check" if request.query["limit"] == "1" else "list"


def script_nodes(
    *,
    lists: Sequence[Answer] = (listing(),),
    watches: Sequence[Answer] = (stream(stays_open=True),),
    checks: Sequence[Answer] = (listing(version=10**6),),
) -> Answer:
    """Answer the requests of each kind in turn; the last answer of a kind is repeated."""
    answers = {"list": list(lists), "watch": list(watches), "check": list(checks)}

    async def answer(request: web.Request) -> web.StreamResponse:
        left = answers[get_kind(request)]
        return await (left.pop(0) if len(left) > 1 else left[0])(request)

    return answer


class NodeFollower:
    """Keeps what a reflector tells, and what the Nodes are by it."""

    def __init__(self) -> None:
        self.events: list[WatchEvent[Node]] = []
        self.nodes: dict[str, Node] = {}
        self.unreadable: list[UnreadableObject] = []
        self.errors: list[Exception] = []

    async def handle(self, happening: WatchEvent[Node]) -> None:
        self.events.append(happening)
        match happening:
            case ListSnapshot():
                self.nodes = {node.name: node for node in happening.items}
            case Changed():
                self.nodes[happening.item.name] = happening.item
            case Deleted():
                self.nodes.pop(happening.item.name, None)

    def count(self, kind: type[Any]) -> int:
        return sum(isinstance(happening, kind) for happening in self.events)


@asynccontextmanager
async def follow_nodes(api: KubeApi, **options: Any) -> AsyncIterator[tuple[NodeFollower, Reflector[Node]]]:
    follower = NodeFollower()
    reflector = Reflector(
        api,
        NODES,
        on_unreadable=follower.unreadable.append,
        on_failure=follower.errors.append,
        **({"jitter": lambda: 0.0} | options),
    )
    async with run_during(reflector.run(follower.handle)):
        yield follower, reflector
