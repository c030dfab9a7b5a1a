"""The labeler publishes a decision when it changes, and again before the stream drops it."""

from datetime import timedelta
from typing import Any

from libs.common.bus.stream_limits import MAX_MESSAGE_AGE
from libs.common.contract.events import Event
from services.labeler.core.plan import IN_SYNC_REASON, Plan, PlanOutcome
from services.labeler.node_decision_publisher import NodeDecisionPublisher
from tests.builders import NOW, make_node

WEB = make_node()
INITIALIZED = Plan(outcome="initialized", reason="r")
IN_SYNC = Plan(outcome="unchanged", reason=IN_SYNC_REASON)


class Decisions:
    """A publisher on a bus that keeps what is published, and its clock."""

    def __init__(self) -> None:
        self.published: list[Event] = []
        self.now = NOW
        self.publisher = NodeDecisionPublisher(self, now=lambda: self.now, observe_only=False)  # type: ignore[arg-type]  # only publishes

    async def publish(self, event: Event, **_: Any) -> int:
        self.published.append(event)
        return 1

    async def is_published(self, plan: Plan, *, uid: str = WEB.uid, **times: Any) -> bool:
        before = len(self.published)
        await self.publisher.publish(make_node(uid=uid), plan, **times)
        return len(self.published) > before


def make_plan(outcome: PlanOutcome = "initialized", reason: str = "r") -> Plan:
    return Plan(outcome=outcome, reason=reason)


async def test_a_decision_is_published_once():
    decisions = Decisions()
    assert await decisions.is_published(INITIALIZED)
    decisions.now += timedelta(minutes=1)
    assert not await decisions.is_published(INITIALIZED)
    assert await decisions.is_published(make_plan(reason="another"))
    assert await decisions.is_published(make_plan(reason="another"), uid="uid-2")


async def test_an_unchanged_decision_is_published_again_before_the_stream_drops_it():
    decisions = Decisions()
    assert await decisions.is_published(INITIALIZED)
    decisions.now += MAX_MESSAGE_AGE / 2
    assert await decisions.is_published(IN_SYNC)
    decisions.now += MAX_MESSAGE_AGE / 2
    assert await decisions.is_published(IN_SYNC)


async def test_a_new_stream_gets_the_decision_again():
    decisions = Decisions()
    assert await decisions.is_published(INITIALIZED)
    decisions.publisher.forget_all()
    assert await decisions.is_published(INITIALIZED)


async def test_the_labelers_own_write_that_comes_back_is_no_decision():
    decisions = Decisions()
    assert await decisions.is_published(INITIALIZED)
    assert not await decisions.is_published(IN_SYNC)
    assert await decisions.is_published(make_plan("blocked", "no"))
    assert await decisions.is_published(IN_SYNC)


async def test_an_unreachable_machine_is_a_new_decision_and_so_is_its_return():
    decisions = Decisions()
    silent = make_plan("unchanged", "left as it is: connection refused")
    assert await decisions.is_published(INITIALIZED)
    assert await decisions.is_published(silent)
    assert not await decisions.is_published(silent)
    assert await decisions.is_published(IN_SYNC)


async def test_another_time_of_the_next_check_is_a_new_decision():
    decisions = Decisions()
    blocked = make_plan("blocked", "no")
    assert await decisions.is_published(blocked, next_check_at=NOW)
    assert await decisions.is_published(blocked, next_check_at=NOW + timedelta(seconds=1))
