"""Writes approvals and denials, fenced by every field that csr evaluated. Never reads."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from libs.common.contract.signing_request import SigningRequest, SigningRequestCondition
from libs.common.observability import metrics
from services.csr.approval_patch import build_approval_patch
from services.csr.decision import Approve, Deny

ActionT = TypeVar("ActionT")

MAX_CONCURRENT_WRITES: Final = 16  # Nodes need connections too if the labeler runs in the same process


class ApprovalClient(Protocol):
    """The calls that csr makes; implemented by `libs.common.kube.api.KubeApi`."""

    async def patch_signing_request_approval(
        self, name: str, json_patch: Sequence[dict[str, Any]], /
    ) -> None: ...


class ApprovalWriter:
    """Writes conditions; in observe-only mode, nothing."""

    def __init__(self, kube: ApprovalClient, *, observe_only: bool) -> None:
        self._kube = kube
        self._observe_only = observe_only
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_WRITES)

    async def write(
        self, request: SigningRequest, action: ActionT, evaluate: Callable[[], ActionT]
    ) -> ActionT:
        """Write `action`, which must be of this moment, and return it.

        Without a free slot, wait for one, and write and return what `evaluate` then returns. While the API
        server is slow, that takes up to a minute, so `action` is out of date. Only Approve and Deny are
        written. Raises KubeError; FenceFailed means that the request in Kubernetes differs or is already
        decided.
        """
        if self._observe_only:
            return action
        must_wait = self._slots.locked()
        async with self._slots:
            if must_wait:
                action = evaluate()
            if not isinstance(action, Approve | Deny):
                return action
            patch = build_approval_patch(request, build_condition(action))
            await self._kube.patch_signing_request_approval(request.name, patch)
        metrics.CSR_APPROVALS.inc("approve" if isinstance(action, Approve) else "deny")
        if isinstance(action, Approve) and action.is_by_node_object_only:
            metrics.CSR_APPROVED_WITHOUT_TALOS.inc()
        return action


def build_condition(decision: Approve | Deny) -> SigningRequestCondition:
    """Return the condition that csr writes for a decision."""
    kind = "Approved" if isinstance(decision, Approve) else "Denied"
    return SigningRequestCondition(type=kind, reason=decision.reason, message=decision.message)
