"""Elects the process that may write for an account, and runs its controllers while it leads."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol

from libs.common.kube.api import KubeApi
from libs.common.observability import metrics
from libs.common.service.leader_elector import LeaderElector
from libs.common.service.service import Dependencies, run_together
from services.cloud.settings import CloudSettings

_LEASE_CONNECTIONS: Final = 2


class LedController(Protocol):
    """A controller that writes only while its process leads."""

    def lead(self) -> Coroutine[Any, Any, None]:
        """Work until cancelled."""
        ...


@dataclass(eq=False, kw_only=True)
class AccountLeader:
    """The Lease of one account, which all its controllers share."""

    elector: LeaderElector
    lease_client: KubeApi  # a write that hangs must not delay a renewal

    def __post_init__(self) -> None:
        self._has_snapshot = asyncio.Event()

    def on_snapshot(self) -> None:
        """Let this process lead from now on.

        Of several processes that run all services, only the one whose watcher leads receives a snapshot.
        """
        self._has_snapshot.set()

    def problems(self) -> tuple[str, ...]:
        """Return why the leader is unknown, in words for /readyz."""
        # Without a snapshot, the flow has that problem.
        return self.elector.problems() if self._has_snapshot.is_set() else ()

    async def run(self, *controllers: LedController) -> None:
        """Run until cancelled."""

        async def lead(lease_transitions: int) -> None:
            await run_together(*(each.lead() for each in controllers))

        try:
            await self._has_snapshot.wait()
            await self.elector.run(lead)
        finally:
            await self.lease_client.close()


def build_account_leader(dependencies: Dependencies, settings: CloudSettings) -> AccountLeader:
    """Return the leader of the only account, with connections of its own for the Lease."""
    lease_client = dependencies.require_kube().with_own_connections(connections=_LEASE_CONNECTIONS)
    elector = LeaderElector(
        lease_client if settings.uses_account_lease else None,
        settings,
        dependencies,
        set_gauge=metrics.BALANCER_LEADER.labels(settings.account.name).set,
    )
    return AccountLeader(elector=elector, lease_client=lease_client)
