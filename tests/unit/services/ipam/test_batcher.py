"""Requests for blocks are allocated in batches, and Events name their Node."""

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence

import pytest

from libs.common.bus.delivery import TemporaryError
from libs.common.kube.event_recorder import EventRecorder
from libs.testbed.child_process import HANG_SECONDS
from services.ipam.batcher import Batcher
from services.ipam.core.allocation import AllocationRequest, AllocationResult, Assignment
from services.ipam.reports import COMPONENT, NOT_AVAILABLE, NodeEvents
from tests.builders import NOW
from tests.bus_actors import wait_until
from tests.clocks import ManualClock
from tests.in_memory_api import InMemoryEvents

Submitted = asyncio.Task[AllocationResult]


class Claims:
    """Answers on command; each claim takes some seconds of the clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.claimed: list[list[str]] = []
        self.answers = asyncio.Semaphore(0)
        self.seconds = 0.0
        self.errors: dict[str, Exception] = {}
        self.batcher = Batcher(self.claim, clock=self.clock, random=random.Random(7))

    async def claim(self, requests: Sequence[AllocationRequest]) -> Mapping[str, AllocationResult]:
        self.claimed.append([request.uid for request in requests])
        await self.answers.acquire()
        self.clock.advance(self.seconds)
        for request in requests:
            if request.uid in self.errors:
                raise self.errors[request.uid]
        return {request.uid: Assignment(uid=request.uid, pod_cidrs=()) for request in requests}

    def answer(self, count: int = 1) -> None:
        for _ in range(count):
            self.answers.release()

    def submit(self, *numbers: int) -> list[Submitted]:
        requests = (AllocationRequest(uid=f"uid-{n}", node=f"web-{n}", pools=()) for n in numbers)
        return [asyncio.create_task(self.batcher.submit(request)) for request in requests]

    async def wait_for_claims(self, *claimed: list[str]) -> None:
        await wait_until(lambda: self.claimed == list(claimed), f"claimed {claimed}")


@pytest.fixture
async def claims() -> Claims:
    return Claims()


def uids_of(results: Iterable[object]) -> list[str]:
    return [result.uid for result in results if isinstance(result, Assignment)]


async def test_the_first_goes_at_once_and_those_that_come_meanwhile_go_together(claims: Claims):
    first = claims.submit(0)
    await claims.wait_for_claims(["uid-0"])
    others = claims.submit(1, 2)
    claims.answer(2)
    assert uids_of(await asyncio.gather(*first, *others)) == ["uid-0", "uid-1", "uid-2"]
    assert claims.claimed == [["uid-0"], ["uid-1", "uid-2"]]


@pytest.mark.parametrize(
    ("seconds", "pause"),
    [(0.0, (0.2, 0.4)), (0.4, (0.9, 1.5)), (60.0, (2.2, 3.8))],
    ids=["quick", "long", "very long"],
)
async def test_the_longer_a_claim_took_the_more_requests_share_the_next_one(
    claims: Claims, seconds: float, pause: tuple[float, float]
):
    claims.seconds = seconds
    claims.answer()
    await asyncio.gather(*claims.submit(0))
    left = claims.batcher._next_claim_at - claims.clock()
    assert pause[0] < left < pause[1]
    claims.clock.advance(left)
    claims.answer()
    await asyncio.wait_for(asyncio.gather(*claims.submit(1)), HANG_SECONDS)


async def test_one_that_gives_up_keeps_nobody_waiting(claims: Claims):
    first, given_up = claims.submit(0, 1)
    await claims.wait_for_claims(["uid-0", "uid-1"])
    given_up.cancel()
    claims.answer()
    assert uids_of([await first]) == ["uid-0"]


async def test_an_error_of_the_claim_is_that_of_all_and_the_next_request_is_another_try(claims: Claims):
    claims.errors["uid-0"] = TemporaryError("no API server")
    claims.answer(2)
    results = await asyncio.gather(*claims.submit(0, 1), return_exceptions=True)
    assert [str(result) for result in results] == ["no API server", "no API server"]
    claims.errors.clear()
    assert uids_of(await asyncio.gather(*claims.submit(0))) == ["uid-0"]


async def test_a_defect_that_one_of_them_triggers_is_that_one_s_alone(claims: Claims):
    claims.errors["uid-1"] = ZeroDivisionError("a defect")
    claims.answer(4)
    first, second, third = await asyncio.gather(*claims.submit(0, 1, 2), return_exceptions=True)
    assert uids_of([first, third]) == ["uid-0", "uid-2"]
    assert isinstance(second, ZeroDivisionError)


async def test_a_claim_that_is_cancelled_leaves_nobody_waiting(claims: Claims):
    claims.errors["uid-0"] = ZeroDivisionError("a defect")
    claims.answer()
    first, second = claims.submit(0, 1)
    await wait_until(lambda: len(claims.claimed) == 2, "the first of them alone")
    first.cancel()
    with pytest.raises(TemporaryError, match="ipam stops"):
        await asyncio.wait_for(second, HANG_SECONDS)
    claims.answer()
    assert uids_of(await asyncio.gather(*claims.submit(2))) == ["uid-2"]


# ---- Events


async def test_an_event_has_the_words_of_the_reference_until_the_node_has_blocks():
    kube = InMemoryEvents()
    recorder = EventRecorder(kube, component=COMPONENT, now=lambda: NOW)
    events = NodeEvents(recorder, lambda: ("no networks",))
    for why in ("no networks", "no room", "no room", "no pool"):
        events.record("web-1", "uid-1", NOT_AVAILABLE, why)
    await recorder.flush()
    first, second = kube.events
    assert first.message == "Node web-1 status is now: CIDRNotAvailable: no room"
    assert (first.regarding.uid, first.reason, first.type, first.component) == (
        "uid-1", "CIDRNotAvailable", "Warning", COMPONENT,
    )  # fmt: skip
    assert second.message.endswith("no pool")
