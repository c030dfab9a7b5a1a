"""Follows the flow for one service, and exports for how long the leader has been silent."""

from collections.abc import Callable
from typing import Protocol

from libs.common.bus.protocol import Bus, Follower
from libs.common.contract.subjects import FLOW
from libs.common.observability import metrics


class FlowFollower(Follower, Protocol):
    """A follower that knows the age of the last leader heartbeat."""

    def leader_silence_seconds(self) -> float: ...


async def follow_flow(
    bus: Bus,
    service: str,
    follower: FlowFollower,
    *,
    exclude: Callable[[str], bool] = lambda subject: False,
) -> None:
    """Follow all subjects of the flow except those for which `exclude` returns true, until cancelled."""
    metrics.LEADER_SILENCE.labels(service).set_function(follower.leader_silence_seconds)
    await bus.follow(service, f"{FLOW}.>", follower, exclude=exclude)
