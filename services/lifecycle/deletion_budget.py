"""The record of deletions on lifecycle's Lease, which counts across restarts and leaders."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final

from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Conflict, KubeError, NotFound
from libs.common.kube.lease import Lease, get_annotation, set_annotation, vacant_lease
from services.lifecycle.core.deletion_limit import (
    ANNOTATION,
    BudgetDenial,
    DeletionLimit,
    grant_deletion,
)
from services.lifecycle.settings import LifecycleSettings

_MAX_ATTEMPTS: Final = (
    3  # a renewal, or another replica without leader election, may write the Lease meanwhile
)


@dataclass(eq=False)
class DeletionBudget:
    """Writes the Lease by compare-and-swap: a replica that lost the Lease writes and deletes nothing.

    A dry run counts in memory, because it must not use up the budget of real deletions.
    """

    kube: KubeApi
    settings: LifecycleSettings
    _: KW_ONLY
    holder: str  # must hold the Lease; "": no holder is required
    now: Callable[[], datetime]

    def __post_init__(self) -> None:
        self._dry_run_record = ""
        self._request_seconds = self.settings.request_deadline_seconds

    async def spend(self, node: str, limit: DeletionLimit) -> str:
        """Count one more deletion before it happens; return "" if it may happen, else why not."""
        if self.settings.is_dry_run:
            record = grant_deletion(self._dry_run_record, node, limit=limit, now=self.now())
            if isinstance(record, BudgetDenial):
                return record.reason
            self._dry_run_record = record
            return ""
        try:
            return await self._spend(node, limit)
        except KubeError as error:
            return f"cannot write the record of deletions: {error}"

    async def _spend(self, node: str, limit: DeletionLimit) -> str:
        for _ in range(_MAX_ATTEMPTS):
            lease = await self._get_lease()
            if self.holder and lease.holder != self.holder:
                return f"{lease.holder or 'no replica'} holds the Lease now"
            record = grant_deletion(get_annotation(lease, ANNOTATION), node, limit=limit, now=self.now())
            if isinstance(record, BudgetDenial):
                return record.reason
            document = set_annotation(lease.document, ANNOTATION, record)
            try:
                await self.kube.write_lease(document, deadline_seconds=self._request_seconds)
            except Conflict:
                continue
            return ""
        return "cannot write the record of deletions: other writers changed the Lease each time"

    async def _get_lease(self) -> Lease:
        """Return the Lease; a vacant one if it does not exist yet."""
        where, name = self.settings.lease_namespace, self.settings.lease_name
        try:
            return await self.kube.get_lease(where, name, deadline_seconds=self._request_seconds)
        except NotFound:
            return vacant_lease(where, name)
