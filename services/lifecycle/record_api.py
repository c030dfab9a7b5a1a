"""The record of deletions on our Lease: counted before they happen, over restarts and leaders."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Final, Protocol

from libs.common.kube_api.errors import AlreadyExists, Conflict, KubeError, NotFound
from libs.common.kube_api.lease import Lease, annotated, annotation, unheld_lease
from services.lifecycle.budget import ANNOTATION, Deletion, Refused, Spent, read_record, spend, written_record

_TRIES: Final = 3  # others may write the Lease at the same moment, if we hold none


class Leases(Protocol):
    """What is needed of `kube_api.KubeApi`."""

    async def get_lease(
        self, namespace: str, name: str, *, deadline_seconds: float | None = None
    ) -> Lease: ...

    async def create_lease(
        self, namespace: str, document: dict[str, Any], *, deadline_seconds: float | None = None
    ) -> Lease: ...

    async def update_lease(
        self, namespace: str, name: str, document: dict[str, Any], *, deadline_seconds: float | None = None
    ) -> Lease: ...


class Record(Protocol):
    """Counts deletions before they happen."""

    async def spend(self, node: str) -> str:
        """Count one more; "" when that is done, else why nothing may be deleted."""


class LeaseRecord:
    """On the Lease, by compare-and-swap: who lost it since writes nothing, and so deletes nothing."""

    def __init__(
        self,
        kube: Leases,
        *,
        namespace: str,
        name: str,
        holder: str,
        writing: AbstractAsyncContextManager[object],
        most: int,
        call_seconds: float,
        now: Callable[[], datetime],
    ) -> None:
        """`holder` must hold the Lease, "" where nobody needs to; no request takes over `call_seconds`."""
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._holder = holder
        self._writing = writing
        self._most = most
        self._call_seconds = call_seconds
        self._now = now

    async def spend(self, node: str) -> str:
        async with self._writing:
            try:
                return await self._spend(node)
            except KubeError as error:
                return f"the record of deletions cannot be written: {error}"

    async def _spend(self, node: str) -> str:
        for _ in range(_TRIES):
            lease = await self._lease()
            if self._holder and lease.holder != self._holder:
                return f"{lease.holder or 'nobody'} holds the Lease now"
            judged = self._judge(lease, node)
            if isinstance(judged, Refused):
                return judged.reason
            document = annotated(lease.document, ANNOTATION, written_record(judged.deletions))
            try:
                await self._kube.update_lease(
                    self._namespace, self._name, document, deadline_seconds=self._call_seconds
                )
            except Conflict:
                continue
            return ""
        return "the record of deletions cannot be written: others write the Lease all the time"

    def _judge(self, lease: Lease, node: str) -> Spent | Refused:
        record = read_record(annotation(lease, ANNOTATION))
        if isinstance(record, Refused):
            return record
        return spend(record, node, most=self._most, now=self._now())

    async def _lease(self) -> Lease:
        where, deadline = self._namespace, self._call_seconds
        try:
            return await self._kube.get_lease(where, self._name, deadline_seconds=deadline)
        except NotFound:
            if self._holder:
                raise
        try:
            document = unheld_lease(where, self._name)
            return await self._kube.create_lease(where, document, deadline_seconds=deadline)
        except AlreadyExists:
            return await self._kube.get_lease(where, self._name, deadline_seconds=deadline)


class OwnRecord:
    """In memory, for a dry run: what would be deleted takes nothing from what will be."""

    def __init__(self, *, most: int, now: Callable[[], datetime]) -> None:
        self._most = most
        self._now = now
        self._deletions: tuple[Deletion, ...] = ()

    async def spend(self, node: str) -> str:
        judged = spend(self._deletions, node, most=self._most, now=self._now())
        if isinstance(judged, Refused):
            return judged.reason
        self._deletions = judged.deletions
        return ""
