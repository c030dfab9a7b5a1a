"""Events and Leases of an API server in memory, and patches as Kubernetes applies them."""

import copy
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from libs.common.kube.events import ObjectEvent, event_name
from libs.common.kube.lease_lock import LeaseDenial, LeaseGrant
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


class InMemoryLease:
    """The holder, and when it expires."""

    def __init__(self, clock: Callable[[], float], *, duration_seconds: float) -> None:
        self.clock = clock
        self.duration_seconds = duration_seconds
        self.holder = ""
        self.expires_at = float("-inf")
        self.transitions = 0


class InMemoryLock:
    """Implements `leader_elector.Lock`. `reach` returns once the process reaches the API server."""

    holder_reads_reports = True
    reported_at = float("-inf")

    def __init__(
        self,
        lease: InMemoryLease,
        identity: str,
        *,
        renew_deadline_seconds: float,
        reach: Callable[[], Awaitable[object]],
    ) -> None:
        self._lease = lease
        self._identity = identity
        self._deadline_seconds = renew_deadline_seconds
        self._reach = reach
        self.leading_until = float("-inf")

    async def report_standby(self) -> None:
        raise AssertionError("the bus in memory answers every leader")

    async def try_acquire_or_renew(self, *, may_acquire: bool = True) -> LeaseGrant | LeaseDenial:
        sent_at = self._lease.clock()
        await self._reach()
        lease, now = self._lease, self._lease.clock()
        if lease.holder != self._identity:
            if (lease.holder and now < lease.expires_at) or not may_acquire:
                return LeaseDenial(holder=lease.holder, seconds=max(0.0, lease.expires_at - now))
            lease.holder, lease.transitions = self._identity, lease.transitions + 1
        lease.expires_at = now + lease.duration_seconds
        self.leading_until = sent_at + self._deadline_seconds
        return LeaseGrant(transitions=lease.transitions)

    async def release(self) -> bool:
        if self._lease.holder != self._identity:
            return False
        self._lease.holder = ""
        return True
