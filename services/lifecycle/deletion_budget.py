"""The record of deletions on lifecycle's Lease, which counts across restarts and leaders."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Final, Protocol

from libs.common.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from libs.common.kube.lease import Lease, get_annotation, set_annotation, vacant_lease_document
from services.lifecycle.deletion_limit import (
    ANNOTATION,
    BudgetDenial,
    BudgetGrant,
    Deletion,
    decode_deletions,
    encode_deletions,
    grant_deletion,
)

_MAX_ATTEMPTS: Final = 3  # without leader election, another replica may write the Lease at the same time


class LeaseClient(Protocol):
    """The calls that the budget makes; implemented by `libs.common.kube.api.KubeApi`."""

    async def get_lease(
        self, namespace: str, name: str, *, deadline_seconds: float | None = None
    ) -> Lease: ...

    async def create_lease(
        self, namespace: str, document: dict[str, Any], *, deadline_seconds: float | None = None
    ) -> Lease: ...

    async def update_lease(
        self, namespace: str, name: str, document: dict[str, Any], *, deadline_seconds: float | None = None
    ) -> Lease: ...


class DeletionBudget(Protocol):
    """Counts deletions before they happen."""

    async def spend(self, node: str) -> str:
        """Count one more deletion; return "" if it may happen, else why not."""


class LeaseDeletionBudget:
    """Writes the Lease by compare-and-swap: a replica that lost the Lease writes and deletes nothing."""

    def __init__(
        self,
        kube: LeaseClient,
        *,
        namespace: str,
        name: str,
        holder: str,
        write_lock: AbstractAsyncContextManager[object],
        limit: int,
        request_timeout_seconds: float,
        now: Callable[[], datetime],
    ) -> None:
        """`holder` must hold the Lease ("" = none needed). `request_timeout_seconds` bounds each request."""
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._holder = holder
        self._write_lock = write_lock
        self._limit = limit
        self._request_timeout_seconds = request_timeout_seconds
        self._now = now

    async def spend(self, node: str) -> str:
        async with self._write_lock:
            try:
                return await self._spend(node)
            except KubeError as error:
                return f"cannot write the record of deletions: {error}"

    async def _spend(self, node: str) -> str:
        for _ in range(_MAX_ATTEMPTS):
            lease = await self._get_or_create_lease()
            if self._holder and lease.holder != self._holder:
                return f"{lease.holder or 'no replica'} holds the Lease now"
            granted = self._grant(lease, node)
            if isinstance(granted, BudgetDenial):
                return granted.reason
            document = set_annotation(lease.document, ANNOTATION, encode_deletions(granted.deletions))
            try:
                await self._kube.update_lease(
                    self._namespace, self._name, document, deadline_seconds=self._request_timeout_seconds
                )
            except Conflict:
                continue
            return ""
        return "cannot write the record of deletions: other writers changed the Lease each time"

    def _grant(self, lease: Lease, node: str) -> BudgetGrant | BudgetDenial:
        record = decode_deletions(get_annotation(lease, ANNOTATION))
        if isinstance(record, BudgetDenial):
            return record
        return grant_deletion(record, node, limit=self._limit, now=self._now())

    async def _get_or_create_lease(self) -> Lease:
        where, deadline = self._namespace, self._request_timeout_seconds
        try:
            return await self._kube.get_lease(where, self._name, deadline_seconds=deadline)
        except NotFound:
            if self._holder:
                raise
        try:
            document = vacant_lease_document(where, self._name)
            return await self._kube.create_lease(where, document, deadline_seconds=deadline)
        except AlreadyExists:
            return await self._kube.get_lease(where, self._name, deadline_seconds=deadline)


class InMemoryDeletionBudget:
    """Counts in memory for a dry run, which must not use up the budget of real deletions."""

    def __init__(self, *, limit: int, now: Callable[[], datetime]) -> None:
        self._limit = limit
        self._now = now
        self._deletions: tuple[Deletion, ...] = ()

    async def spend(self, node: str) -> str:
        granted = grant_deletion(self._deletions, node, limit=self._limit, now=self._now())
        if isinstance(granted, BudgetDenial):
            return granted.reason
        self._deletions = granted.deletions
        return ""
