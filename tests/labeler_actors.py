"""Test actors around the labeler: an API server in memory, and a labeler with its own bus connection."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import msgspec

from libs.common.bus.nats.bus import NatsBus
from libs.common.contract.node import Node
from libs.common.kube.errors import FenceFailed, KubeError, NotFound
from libs.common.kube.events import ObjectEvent
from services.labeler.service import LabelerService
from services.labeler.settings import LabelerSettings
from tests.bus_actors import run_during, wait_until, wait_until_led, wait_until_ready
from tests.clocks import ManualClock
from tests.flow_actors import QUICK
from tests.in_memory_api import InMemoryEvents, PatchFailed, apply_status_patch
from tests.in_memory_api import apply_json_patch as apply_json
from tests.service_flow import make_dependencies

Admit = Callable[[str, str, Any], Awaitable[None]]  # (resource, name, patch); raises to refuse


async def _admit_all(_resource: str, _name: str, _patch: Any) -> None:
    pass


class InMemoryNodes(InMemoryEvents):
    """The Nodes and Events of an API server; the labeler's conformance suite also runs on the real one."""

    def __init__(self, *nodes: Node) -> None:
        super().__init__()
        self.requests: list[tuple[str, str]] = []  # (verb, resource), also of failed requests
        self.urgent_patches: list[str] = []  # the names of their Nodes, in order
        self.failing: dict[str, KubeError] = {}  # resource -> the error that each write raises
        self.before: Callable[[str], object] = lambda resource: None  # called at the start of each write
        self.admit: Admit = _admit_all  # called with each patch of a Node, before it is applied
        self._documents: dict[str, dict[str, Any]] = {}
        self._version = 1000
        for node in nodes:
            self.put(node)

    def put(self, node: Node) -> Node:
        """Create or replace as another client; the Node gets the next resourceVersion."""
        return self._store(msgspec.json.decode(msgspec.json.encode(node)))

    def change(self, name: str, **metadata: Any) -> Node:
        """Replace parts of the metadata as another client."""
        node = self.node(name)
        return self.put(
            msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, **metadata))
        )

    def restore(self, node: Node) -> None:
        """Replace the Node with its state in a backup of etcd; it keeps its resourceVersion."""
        self._documents[node.name] = msgspec.json.decode(msgspec.json.encode(node))

    def node(self, name: str) -> Node:
        """Return the current Node."""
        return msgspec.convert(self._documents[name], Node)

    def delete(self, name: str) -> None:
        del self._documents[name]

    def list_writes(self) -> list[str]:
        """Return the written resources, in order."""
        return [resource for verb, resource in self.requests if verb != "get"]

    def list_patches(self) -> list[str]:
        """Return the patched resources without Events, which follow after the patches."""
        return [resource for verb, resource in self.requests if verb == "patch"]

    # ---- node_writer.NodeClient

    async def get_node(self, name: str) -> Node:
        self.requests.append(("get", "nodes"))
        return msgspec.convert(self._found(name), Node)

    async def patch_node(
        self, name: str, json_patch: Sequence[dict[str, Any]], /, *, is_urgent: bool = False
    ) -> Node:
        await self.admit("nodes", name, json_patch)
        self._begin("nodes")
        if is_urgent:
            self.urgent_patches.append(name)
        document = self._found(name)
        try:
            return self._store(apply_json(document, list(json_patch)))
        except PatchFailed as error:
            raise FenceFailed(str(error), status=422) from error

    async def patch_node_status(self, name: str, strategic_merge: dict[str, Any], /) -> Node:
        await self.admit("nodes/status", name, strategic_merge)
        self._begin("nodes/status")
        document = self._found(name)
        try:
            return self._store(apply_status_patch(document, strategic_merge))
        except ValueError as error:
            raise FenceFailed(str(error), status=422) from error

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> None:
        self._begin("events")
        await super().create_event(event, now=now)

    def _begin(self, resource: str) -> None:
        self.before(resource)
        self.requests.append(("create" if resource == "events" else "patch", resource))
        if resource in self.failing:
            raise self.failing[resource]

    def _found(self, name: str) -> dict[str, Any]:
        if name not in self._documents:
            raise NotFound(f'nodes "{name}" not found', status=404)
        return self._documents[name]

    def _store(self, document: dict[str, Any]) -> Node:
        node = msgspec.convert(document, Node)
        if self._documents.get(node.name) != document:
            self._version += 1
            document["metadata"]["resourceVersion"] = str(self._version)
        self._documents[node.name] = document
        return msgspec.convert(document, Node)


@asynccontextmanager
async def run_labeler(
    url: str,
    kube: Any,
    *,
    clock: ManualClock | None = None,
    seed: int = 1,
    ready: bool = True,
    **settings: Any,
) -> AsyncIterator[LabelerService]:
    """Run a labeler with its own bus connection, as in a separate process.

    Its first rollout is over before the test goes on, unless the test sets the delay of rollouts: otherwise
    it could reconcile a Node once more at any time in the first seconds.
    """
    waits_for_rollout = ready and "rollout_spread_seconds" not in settings
    if waits_for_rollout:
        settings["rollout_spread_seconds"] = 0.0
    bus = await NatsBus.connect((url,), service="labeler", timing=QUICK)
    try:
        parts = make_dependencies(bus, kube=kube, clock=clock or ManualClock(), seed=seed)
        service = LabelerService(parts, LabelerSettings(**settings))
        async with run_during(service.run()):
            await (wait_until_ready if ready else wait_until_led)(service, bus)
            if waits_for_rollout:
                await wait_until_rolled_out(service)
            yield service
    finally:
        await bus.close()


async def wait_until_rolled_out(labeler: LabelerService) -> None:
    """Wait until no rollout is left to run."""
    await wait_until(lambda: not labeler._rollout.is_busy, "every Node is reconciled again")
