"""An API server for ipam in memory, where a test controls every request: when it arrives there,
when its answer comes back, and whether."""

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from libs.common.bus.delivery import TemporaryError
from libs.common.contract.node import Node
from libs.common.kube.errors import AlreadyExists, Conflict, FenceFailed, KubeError, NotFound, Unreachable
from libs.common.kube.objects import ConfigMap, Page
from tests.builders import NOW
from tests.in_memory_api import PatchFailed, apply_json_patch


class PendingCall:
    """One request: awaited by the code under test, carried out when the test says so."""

    def __init__(self, effect: Callable[["SimulatedTask"], Any]):
        self.effect = effect

    def __await__(self) -> Generator["PendingCall", Any, Any]:
        return (yield self)


class SimulatedTask:
    """A coroutine of a replica, standing at a request."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], **told: Any):
        self.arguments = told  # the arguments of the request
        self.result: Any = None
        self.error: KubeError | TemporaryError | None = None
        self.done = False
        self.call: PendingCall | None = None
        self.answer: Any = None  # once the request has arrived
        self._coroutine = coroutine
        self._go(lambda: coroutine.send(None))

    def deliver_request(self) -> None:
        """The server carries out the request; the answer is on its way."""
        if self.call is not None:
            self.answer = execute_call(self.call, self)
            self.call = None

    def deliver_response(self) -> Any:
        """The answer comes back, of a request that has arrived or arrives now."""
        self.deliver_request()
        answer = self.answer
        self.resume(answer)
        return answer

    def resume(self, answer: Any) -> None:
        """The result that the coroutine gets for its request."""
        self.call = self.answer = None
        if isinstance(answer, KubeError):
            self._go(lambda: self._coroutine.throw(answer))
        else:
            self._go(lambda: self._coroutine.send(answer))

    def kill(self) -> None:
        """The process dies here."""
        self.done = True
        self._coroutine.close()

    def _go(self, move: Callable[[], PendingCall]) -> None:
        try:
            self.call = move()
        except StopIteration as stopped:
            self.done, self.result = True, stopped.value
        except (KubeError, TemporaryError) as error:
            self.done, self.error = True, error


def execute_call(call: PendingCall, task: SimulatedTask) -> Any:
    """The answer to a request that arrives now: its result or its error."""
    try:
        return call.effect(task)
    except KubeError as error:
        return error


def make_unreachable_error() -> Unreachable:
    """What a client says when it got no answer."""
    return Unreachable("no answer")


class IpamServer:
    """Nodes and pages; `on_write` and `on_patch` judge each write before it is done."""

    def __init__(
        self,
        on_write: Callable[[Any, ConfigMap | None, ConfigMap], None] = lambda *_: None,
        on_patch: Callable[[Any, Node, tuple[str, ...]], None] = lambda *_: None,
    ):
        self.nodes: dict[str, Node] = {}
        self.pages: dict[str, ConfigMap] = {}
        self.page_writes = 0
        self.now: Callable[[], datetime] = lambda: NOW
        self._version = 0
        self._on_write = on_write
        self._on_patch = on_patch

    def version(self) -> str:
        self._version += 1
        return str(self._version)

    def save(self) -> "tuple[dict[str, Node], dict[str, ConfigMap], int]":
        """A backup of all Nodes and pages."""
        return dict(self.nodes), dict(self.pages), self._version

    def restore(self, backup: "tuple[dict[str, Node], dict[str, ConfigMap], int]") -> None:
        """Replace everything by the backup, as a restore of etcd does: resourceVersions come again."""
        nodes, pages, self._version = backup
        self.nodes, self.pages = dict(nodes), dict(pages)

    def put_page(self, task: SimulatedTask | None, page: ConfigMap) -> ConfigMap:
        name, version = page.metadata.name, page.metadata.resource_version
        there = self.pages.get(name)
        if there is None and version:
            raise NotFound(name, status=404)
        if there is not None and not version:
            raise AlreadyExists(name, status=409)
        if there is not None and there.metadata.resource_version != version:
            raise Conflict(name, status=409)
        self._on_write(task, there, page)
        self.page_writes += 1
        return self.store_page(page, there.metadata.creation_timestamp if there else self.now())

    def store_page(self, page: ConfigMap, created: datetime | None) -> ConfigMap:
        """Store a page at a new resourceVersion, without a judge."""
        metadata = msgspec.structs.replace(
            page.metadata, resource_version=self.version(), creation_timestamp=created
        )
        self.pages[metadata.name] = msgspec.structs.replace(page, metadata=metadata)
        return self.pages[metadata.name]

    def patch(self, task: SimulatedTask | None, name: str, patch: Sequence[dict[str, Any]]) -> Node:
        node = self.nodes.get(name)
        if node is None:
            raise NotFound(name, status=404)
        document = msgspec.to_builtins(node)
        document.setdefault("spec", {})
        try:
            after = msgspec.convert(apply_json_patch(document, list(patch)), Node)
        except PatchFailed as failed:
            raise FenceFailed(str(failed), status=422) from failed
        if node.spec.pod_cidrs and after.spec.pod_cidrs != node.spec.pod_cidrs:
            raise FenceFailed("podCIDRs is immutable")
        self._on_patch(task, after, after.spec.pod_cidrs)
        return self.put_node(after)

    def put_node(self, node: Node) -> Node:
        metadata = msgspec.structs.replace(node.metadata, resource_version=self.version())
        self.nodes[node.name] = msgspec.structs.replace(node, metadata=metadata)
        return self.nodes[node.name]


class CallRecordingApi:
    """The requests of `Allocator`, each of which is a `PendingCall`."""

    def __init__(self, server: IpamServer):
        self._server = server

    async def list_config_maps(
        self, namespace: str, labels: Mapping[str, str]
    ) -> AsyncIterator[Page[ConfigMap]]:
        items = await PendingCall(lambda _: tuple(self._server.pages.values()))
        yield Page(items=items, resource_version="")

    async def create_config_map(self, namespace: str, config_map: ConfigMap) -> ConfigMap:
        return await PendingCall(lambda task: self._server.put_page(task, config_map))  # type: ignore[no-any-return]

    async def update_config_map(self, namespace: str, config_map: ConfigMap) -> ConfigMap:
        return await self.create_config_map(namespace, config_map)

    async def patch_node(self, name: str, json_patch: Sequence[dict[str, Any]], /) -> Node:
        return await PendingCall(lambda task: self._server.patch(task, name, json_patch))  # type: ignore[no-any-return]

    async def list_nodes(self) -> AsyncIterator[Page[Node]]:
        yield Page(items=await PendingCall(self._list_nodes), resource_version="")

    def _list_nodes(self, task: SimulatedTask) -> tuple[Node, ...]:
        nodes = tuple(self._server.nodes.values())
        task.arguments["listed"] = {node.uid: node.spec.pod_cidrs for node in nodes}
        return nodes
