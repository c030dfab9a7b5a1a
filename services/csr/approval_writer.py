"""The one write: a request's approval or denial, fenced by all that was decided on. Nothing is ever read."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

from libs.common.contract.signing_request import SigningRequest, SigningRequestCondition
from libs.common.kube.events import ObjectEvent
from libs.common.observability import metrics
from services.csr.approval_patch import build_approval_patch
from services.csr.decision import Approve, Deny

ActionT = TypeVar("ActionT")

MAX_CONCURRENT_WRITES: Final = 16  # in one process with the labeler, Nodes need connections, too


class ApprovalClient(Protocol):
    """What csr may do there; `kube_api.KubeApi` does it."""

    async def patch_signing_request_approval(
        self, name: str, json_patch: Sequence[dict[str, Any]], /
    ) -> None: ...
    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool: ...


class ApprovalWriter:
    """Writes conditions, or in observe-only mode nothing."""

    def __init__(self, kube: ApprovalClient, *, observe_only: bool) -> None:
        self._kube = kube
        self._observe_only = observe_only
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_WRITES)

    async def write(self, request: SigningRequest, evaluate: Callable[[], ActionT]) -> ActionT:
        """Write the verdict that `judge` returns once a slot is free; return that verdict.

        Nothing but Approve and Deny is written. Waiting for a slot takes up to a minute while the API server
        is slow, so an earlier verdict counts for nothing. Raises KubeError; FenceFailed means that Kubernetes
        holds another request, or a decided one.
        """
        if self._observe_only:
            return evaluate()
        async with self._slots:
            verdict = evaluate()
            if not isinstance(verdict, Approve | Deny):
                return verdict
            patch = build_approval_patch(request, build_condition(verdict))
            await self._kube.patch_signing_request_approval(request.name, patch)
        metrics.CSR_APPROVALS.inc("approve" if isinstance(verdict, Approve) else "deny")
        if isinstance(verdict, Approve) and verdict.is_by_node_object_only:
            metrics.CSR_APPROVED_WITHOUT_TALOS.inc()
        return verdict


def build_condition(decision: Approve | Deny) -> SigningRequestCondition:
    """The condition that is written for a decision."""
    kind = "Approved" if isinstance(decision, Approve) else "Denied"
    return SigningRequestCondition(type=kind, reason=decision.reason, message=decision.message)
