"""The one write: a request's approval or denial, fenced by all that was decided on. Nothing is ever read."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

from libs.common import metrics
from libs.common.kube_api.events import ObjectEvent
from libs.common.signing_request import SigningRequest, SigningRequestCondition
from services.csr.approval import approval_patch
from services.csr.judgement import Approve, Deny

V = TypeVar("V")

WRITE_SLOTS: Final = 16  # in one process with the labeler, Nodes need connections, too


class Kubernetes(Protocol):
    """What csr may do there; `kube_api.KubeApi` does it."""

    async def patch_signing_request_approval(
        self, name: str, json_patch: Sequence[dict[str, Any]], /
    ) -> None: ...
    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool: ...


class ApprovalsApi:
    """Writes conditions, or in observe-only mode nothing."""

    def __init__(self, kube: Kubernetes, *, observe_only: bool) -> None:
        self._kube = kube
        self._observe_only = observe_only
        self._slots = asyncio.Semaphore(WRITE_SLOTS)

    async def write(self, request: SigningRequest, judge: Callable[[], V]) -> V:
        """Write the verdict that `judge` returns once a slot is free; return that verdict.

        Nothing but Approve and Deny is written. Waiting for a slot takes up to a minute while the API server
        is slow, so an earlier verdict counts for nothing. Raises KubeError; FenceFailed means that Kubernetes
        holds another request, or a decided one.
        """
        if self._observe_only:
            return judge()
        async with self._slots:
            verdict = judge()
            if not isinstance(verdict, Approve | Deny):
                return verdict
            patch = approval_patch(request, condition_of(verdict))
            await self._kube.patch_signing_request_approval(request.name, patch)
        metrics.CSR_APPROVALS.inc("approve" if isinstance(verdict, Approve) else "deny")
        if isinstance(verdict, Approve) and verdict.by_node_object_only:
            metrics.CSR_APPROVED_WITHOUT_TALOS.inc()
        return verdict


def condition_of(decision: Approve | Deny) -> SigningRequestCondition:
    """The condition that is written for a decision."""
    kind = "Approved" if isinstance(decision, Approve) else "Denied"
    return SigningRequestCondition(type=kind, reason=decision.reason, message=decision.message)
