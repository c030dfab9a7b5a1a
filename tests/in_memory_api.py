"""Events and Leases of an API server in memory, and patches as Kubernetes applies them."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import msgspec

from libs.common.kube.errors import Conflict, KubeError, NotFound, Unreachable
from libs.common.kube.events import ObjectEvent, event_name
from libs.common.kube.lease import Lease, read_lease, set_annotation
from libs.testbed.sim_apiserver.refusals import Refusal
from libs.testbed.sim_apiserver.request_bodies import apply_json_patch as apply_operations
from libs.testbed.sim_apiserver.request_bodies import apply_strategic_merge_patch


class PatchFailed(Exception):
    """The patch as a whole does not apply, as the API server's 422."""


def apply_json_patch(document: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """The document after the patch; empty maps and lists of metadata and spec vanish, as on the server."""
    try:
        result: dict[str, Any] = apply_operations(copy.deepcopy(document), patch)
    except Refusal as refusal:
        if refusal.code != 422 or refusal.status["details"]:  # no failed fence but a wrong patch
            raise
        raise PatchFailed(str(refusal)) from refusal
    for section in ("metadata", "spec"):
        for key in [k for k, v in result.get(section, {}).items() if v in ({}, [])]:
            del result[section][key]
    return result


def apply_status_patch(document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """The Node after the patch. Raises ValueError if it is for a Node of another uid."""
    result: dict[str, Any] = apply_strategic_merge_patch(copy.deepcopy(document), patch)
    if result["metadata"]["uid"] != document["metadata"]["uid"]:
        raise ValueError("metadata.uid: the Node is another one")
    return result


class InMemoryEvents:
    """Keeps each Event once by name, as an API server does."""

    def __init__(self) -> None:
        self.events: list[ObjectEvent] = []
        self._event_names: set[str] = set()

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> None:
        """Store the Event unless its name exists."""
        name = event_name(event, now)
        if name not in self._event_names:
            self._event_names.add(name)
            self.events.append(event)

    def list_event_reasons(self, name: str) -> list[str]:
        """Reasons of the Events on the object of that name, in order."""
        return [event.reason for event in self.events if event.regarding.name == name]


def make_lease(
    holder: str = "",
    *,
    renewed: str = "r1",
    duration: int | None = 15,
    transitions: int = 3,
    annotations: dict[str, str] | None = None,
) -> Lease:
    """A Lease of an API server; without a holder it is a released one."""
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": duration,
        "acquireTime": "a1",
        "renewTime": renewed,
        "leaseTransitions": transitions,
    }
    metadata = {"namespace": "kube-system", "name": "lease", "resourceVersion": "1"}
    document = {"metadata": metadata | {"annotations": annotations or {}}, "spec": spec}
    return read_lease(msgspec.json.encode(document))


class InMemoryLeases:
    """Keeps Leases, and replaces only the version that a writer has read, as an API server does."""

    def __init__(self) -> None:
        self.leases: dict[str, Lease] = {}
        self._version = 1

    def get(self, name: str) -> Lease:
        """Return the Lease. Raises NotFound."""
        if name not in self.leases:
            raise NotFound(f"leases {name!r} not found", status=404)
        return self.leases[name]

    def annotate(self, name: str) -> None:
        """Change an annotation, as a client does that is no candidate."""
        self.write(set_annotation(self.get(name).document, "a.b/c", str(self._version)))

    def write(self, document: dict[str, Any]) -> Lease:
        """Store the next version. Raises Conflict; also for the version of a Lease that is deleted."""
        name, version = document["metadata"]["name"], document["metadata"].get("resourceVersion")
        stored = self.leases[name].document["metadata"]["resourceVersion"] if name in self.leases else None
        if version != stored:
            raise Conflict(name, status=409)
        self._version += 1
        metadata = document["metadata"] | {"resourceVersion": str(self._version)}
        self.leases[name] = read_lease(msgspec.json.encode(document | {"metadata": metadata}))
        return self.leases[name]


async def _reach_at_once() -> None:
    """No fault."""


class LeaseConnection:
    """Sends the requests of one process to the Leases, with the faults that a test sets.

    `reach` returns once a request reaches the API server, and once its answer reaches the process.
    """

    def __init__(
        self, leases: InMemoryLeases, *, reach: Callable[[], Awaitable[object]] = _reach_at_once
    ) -> None:
        self.leases = leases
        self.verbs: list[str] = []
        self.reach = reach
        self.error: KubeError | None = None  # of each request
        self.answer_seconds = 0.0
        self.overtaken = 0  # how many of the next writes another client precedes

    def recover(self) -> None:
        """End all faults."""
        self.reach, self.error, self.answer_seconds, self.overtaken = _reach_at_once, None, 0.0, 0

    def with_own_connections(self, *, connections: int) -> "LeaseConnection":
        return self

    async def close(self) -> None:
        """Nothing is open."""

    async def get_lease(self, namespace: str, name: str, *, deadline_seconds: float) -> Lease:
        return await self._send("get", lambda: self.leases.get(name), deadline_seconds)

    async def write_lease(self, document: dict[str, Any], *, deadline_seconds: float) -> Lease:
        def write() -> Lease:
            if self.overtaken:
                self.overtaken -= 1
                self.leases.annotate(document["metadata"]["name"])
            return self.leases.write(document)

        return await self._send("write", write, deadline_seconds)

    async def _send(self, verb: str, request: Callable[[], Lease], deadline_seconds: float) -> Lease:
        self.verbs.append(verb)
        try:
            async with asyncio.timeout(deadline_seconds):
                await self.reach()
                if self.error is not None:
                    raise self.error
                lease = request()
                await asyncio.sleep(self.answer_seconds)
                await self.reach()
                return lease
        except TimeoutError:
            raise Unreachable(f"no answer within {deadline_seconds:g} s") from None
