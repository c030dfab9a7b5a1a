"""The one write: a request's approval or denial, fenced by all that was decided on. Nothing is ever read."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

from libs.common import metrics
from libs.common.kube_api.errors import FenceFailed
from libs.common.kube_api.events import ObjectEvent
from libs.common.signing_request import SigningRequest, SigningRequestCondition
from services.csr.approval import approval_patch

_AT_ONCE: Final = 16  # in one process with the labeler, Nodes need connections, too


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
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def write(
        self,
        request: SigningRequest,
        condition: SigningRequestCondition,
        *,
        without_talos: bool,
        why_not: Callable[[], str],
    ) -> None:
        """Raises KubeError; FenceFailed means that Kubernetes holds another request, or a decided one.

        `why_not` is asked when it is its turn, "" if it may be written; else that is FenceFailed, too.
        """
        if self._observe_only:
            return
        async with self._room:
            if why := why_not():
                raise FenceFailed(why)
            await self._kube.patch_signing_request_approval(request.name, approval_patch(request, condition))
        approved = condition.type == "Approved"
        metrics.CSR_APPROVALS.inc("approve" if approved else "deny")
        if approved and without_talos:
            metrics.CSR_APPROVED_WITHOUT_TALOS.inc()
