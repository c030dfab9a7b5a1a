"""Writes approvals and denials, fenced by every field that csr evaluated. Never reads."""

import asyncio
import base64
from collections.abc import Callable
from typing import Any, Final

import msgspec

from libs.common.contract.signing_request import SigningRequest, SigningRequestCondition
from libs.common.kube.api import KubeApi
from libs.common.observability import metrics
from services.csr.core.decision import Approve, Decision, Deny

MAX_CONCURRENT_WRITES: Final = 16  # Nodes need connections too if the labeler runs in the same process


class ApprovalWriter:
    """Writes conditions; in observe-only mode, nothing."""

    def __init__(self, kube: KubeApi, *, observe_only: bool) -> None:
        self._kube = kube
        self._observe_only = observe_only
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_WRITES)

    async def write(
        self, request: SigningRequest, decision: Decision, evaluate: Callable[[], Decision]
    ) -> Decision:
        """Write `decision`, which must be of this moment, and return it.

        Without a free slot, wait for one, and write and return what `evaluate` then returns. While the API
        server is slow, that takes up to a minute, so `decision` is out of date. Only Approve and Deny are
        written. Raises KubeError; FenceFailed means that the request in Kubernetes differs or is already
        decided.
        """
        if self._observe_only:
            return decision
        must_wait = self._slots.locked()
        async with self._slots:
            if must_wait:
                decision = evaluate()
            if not isinstance(decision, Approve | Deny):
                return decision
            patch = build_approval_patch(request, build_condition(decision))
            await self._kube.patch_signing_request_approval(request.name, patch)
        metrics.CSR_APPROVALS.inc("approve" if isinstance(decision, Approve) else "deny")
        if isinstance(decision, Approve) and decision.is_by_node_object_only:
            metrics.CSR_APPROVED_WITHOUT_TALOS.inc()
        return decision


def build_condition(decision: Approve | Deny) -> SigningRequestCondition:
    """Return the condition that csr writes for a decision."""
    kind = "Approved" if isinstance(decision, Approve) else "Denied"
    return SigningRequestCondition(type=kind, reason=decision.reason, message=decision.message)


def build_approval_patch(request: SigningRequest, condition: SigningRequestCondition) -> list[dict[str, Any]]:
    """Build a JSON Patch (RFC 6902) for the subresource `approval`, fenced to the evaluated request.

    It tests every field that csr evaluated, and that the request has no conditions yet. So a wrong message
    cannot approve a request that differs from the one in Kubernetes. A `test` for null passes where the field
    is missing. The API server sets the time of the condition. Raises ValueError for an approval if the
    message does not contain the PKCS #10 request.
    """
    spec = request.spec
    if condition.type == "Approved" and not spec.request:
        raise ValueError(f"{request.name} was published without its PKCS #10 request: cannot approve it")
    return [
        _test("/metadata/uid", request.uid),
        _test("/spec/username", spec.username),
        _test("/spec/groups", list(spec.groups) or None),
        _test("/spec/signerName", spec.signer_name),
        _test("/spec/usages", list(spec.usages) or None),
        _test("/spec/expirationSeconds", spec.expiration_seconds),
        # An oversized request is published without these bytes: csr can only deny it, fenced by its uid.
        *([_test("/spec/request", base64.b64encode(spec.request).decode())] if spec.request else []),
        _test("/status/conditions", None),
        {"op": "add", "path": "/status/conditions", "value": [msgspec.structs.asdict(condition)]},
    ]


def _test(path: str, value: Any) -> dict[str, Any]:
    return {"op": "test", "path": path, "value": value}
