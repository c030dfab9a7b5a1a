"""Requests at the same time share one claim, and none waits forever."""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence

import msgspec
import pytest

from libs.common.bus.delivery import TemporaryError
from services.ipam.allocation_plan import AllocationRequest, Assignment
from services.ipam.batcher import Batcher, BatchResult, BatchTiming, RequestResult
from tests.bus_actors import wait_until


def want(number: int) -> AllocationRequest:
    return AllocationRequest(uid=f"uid-{number}", node=f"web-{number}", pools=())


def uid_of(answered: object) -> str:
    assert isinstance(answered, RequestResult)
    assert isinstance(answered.result, Assignment)
    return answered.result.uid


class Claims:
    """Answers on command; can simulate writes of other replicas."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.go = asyncio.Semaphore(0)
        self.error: dict[str, Exception] = {}
        self.contended = False
        self.others_wrote = False
        self.others_are_quicker = False
        self.unreadable: TemporaryError | None = None
        self.reads = 0

    async def __call__(self, wants: Sequence[AllocationRequest], insist: bool) -> BatchResult:
        self.asked.append([each.uid for each in wants])
        await self.go.acquire()
        if self.others_are_quicker and not insist:
            return BatchResult({}, is_contended=True)
        for each in wants:
            if each.uid in self.error:
                raise self.error[each.uid]
        answers = {
            each.uid: RequestResult(Assignment(uid=each.uid, pod_cidrs=("10.0.0.0/24",))) for each in wants
        }
        return BatchResult(answers, self.contended)

    async def read_pages(self) -> bool:
        self.reads += 1
        if self.unreadable:
            raise self.unreadable
        return self.others_wrote

    def answer_everybody(self) -> None:
        for _ in range(100):
            self.go.release()


@pytest.fixture
def claims() -> Claims:
    return Claims()


QUICK = BatchTiming(interval=0.05)
PATIENT = BatchTiming(interval=0.0, quiet_period=60.0, max_wait=60.0, full_batch=3, contention_timeout=600.0)


def gathering_of(
    claims: Claims, pace: BatchTiming = QUICK, clock: Callable[[], float] | None = None
) -> Batcher:
    return Batcher(
        claims,
        claims.read_pages,
        clock=clock or asyncio.get_running_loop().time,
        random=random.Random(7),
        timing=pace,
    )


def wanting(gathering: Batcher, *numbers: int) -> list[asyncio.Task[RequestResult]]:
    return [asyncio.create_task(gathering.submit(want(number))) for number in numbers]


async def test_the_first_goes_at_once_and_those_that_come_meanwhile_go_together(claims: Claims):
    gathering = gathering_of(claims)
    first = asyncio.create_task(gathering.submit(want(0)))
    await wait_until(lambda: claims.asked == [["uid-0"]])
    others = [asyncio.create_task(gathering.submit(want(number))) for number in range(1, 5)]
    claims.go.release()
    claims.go.release()
    answers = await asyncio.gather(first, *others)
    assert [uid_of(answer) for answer in answers] == [f"uid-{n}" for n in range(5)]
    assert claims.asked == [["uid-0"], [f"uid-{n}" for n in range(1, 5)]]


async def test_after_a_claim_that_took_long_more_of_them_share_the_next_one(claims: Claims):
    now = [100.0]
    pace = BatchTiming(interval=0.0, intervals_per_claim=2.0, max_interval=600.0)
    gathering = gathering_of(claims, pace, lambda: now[0])
    [first] = wanting(gathering, 0)
    await wait_until(lambda: len(claims.asked) == 1)
    second = wanting(gathering, 1)
    now[0] += 100.0
    claims.go.release()
    await first
    third = wanting(gathering, 2)
    await asyncio.sleep(0.05)
    assert len(claims.asked) == 1, "it waits for others"
    await gathering.close()
    await asyncio.gather(*second, *third, return_exceptions=True)


async def test_however_long_a_claim_took_the_next_one_goes_soon(claims: Claims):
    now = [100.0]
    gathering = gathering_of(claims, BatchTiming(interval=0.0, max_interval=0.05), lambda: now[0])
    [first] = wanting(gathering, 0)
    await wait_until(lambda: len(claims.asked) == 1)
    others = wanting(gathering, 1, 2)
    now[0] += 100.0
    claims.go.release()
    claims.go.release()
    await asyncio.gather(first, *others)
    assert claims.asked == [["uid-0"], ["uid-1", "uid-2"]]


async def test_one_that_gives_up_keeps_nobody_waiting(claims: Claims):
    gathering = gathering_of(claims)
    given_up = asyncio.create_task(gathering.submit(want(0)))
    await wait_until(lambda: len(claims.asked) == 1)
    given_up.cancel()
    other = asyncio.create_task(gathering.submit(want(1)))
    claims.go.release()
    claims.go.release()
    assert uid_of(await other) == "uid-1"


async def test_what_the_world_refuses_everybody_hears_and_the_next_want_is_another_try(claims: Claims):
    gathering = gathering_of(claims)
    claims.error["uid-0"] = TemporaryError("no API server")
    claims.go.release()
    with pytest.raises(TemporaryError, match="no API server"):
        await gathering.submit(want(0))
    claims.error.clear()
    claims.go.release()
    assert uid_of(await gathering.submit(want(0))) == "uid-0"


async def test_a_defect_that_one_of_them_hits_is_that_one_s_alone(claims: Claims):
    gathering = gathering_of(claims)
    claims.error["uid-1"] = ZeroDivisionError("a defect")
    tasks = [asyncio.create_task(gathering.submit(want(number))) for number in range(3)]
    for _ in range(4):
        claims.go.release()
    first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
    assert uid_of(first) == "uid-0"
    assert isinstance(second, ZeroDivisionError)
    assert uid_of(third) == "uid-2"


async def assert_closing_fails(gathering: Batcher, tasks: Iterable["asyncio.Task[RequestResult]"]) -> None:
    await gathering.close()
    for task in tasks:
        with pytest.raises(TemporaryError, match="ipam stops"):
            await asyncio.wait_for(task, 10)


async def test_the_end_of_the_process_leaves_nobody_waiting(claims: Claims):
    gathering = gathering_of(claims)
    task = asyncio.create_task(gathering.submit(want(0)))
    await wait_until(lambda: len(claims.asked) == 1)
    await gathering.close()
    with pytest.raises(TemporaryError, match="ipam stops"):
        await task


async def test_the_end_of_the_process_leaves_nobody_waiting_whose_turn_after_a_defect_has_not_come(
    claims: Claims,
):
    gathering = gathering_of(claims)
    claims.error["uid-0"] = ZeroDivisionError("a defect")
    tasks = wanting(gathering, 0, 1, 2)
    await wait_until(lambda: len(claims.asked) == 1)
    claims.go.release()
    await wait_until(lambda: len(claims.asked) == 2)
    await assert_closing_fails(gathering, tasks)


def contended_gathering(claims: Claims) -> Batcher:
    """Others write the same pages."""
    claims.answer_everybody()
    claims.contended = True
    return gathering_of(claims, PATIENT)


async def test_the_end_of_the_process_leaves_nobody_waiting_for_others_to_come(claims: Claims):
    gathering = contended_gathering(claims)
    await gathering.submit(want(0))
    tasks = wanting(gathering, 1, 2)
    await asyncio.wait(tasks, timeout=0.05)
    await assert_closing_fails(gathering, tasks)


async def test_a_node_that_joins_alone_waits_for_nobody_though_others_write(claims: Claims):
    gathering = contended_gathering(claims)
    for number in range(3):
        await asyncio.wait_for(gathering.submit(want(number)), 10)
    assert claims.asked == [["uid-0"], ["uid-1"], ["uid-2"]]


async def test_while_others_write_the_same_pages_a_claim_waits_until_enough_have_come(claims: Claims):
    gathering = contended_gathering(claims)
    await gathering.submit(want(0))
    two = wanting(gathering, 1, 2)
    await asyncio.wait(two, timeout=0.1)
    assert claims.asked == [["uid-0"]]
    await asyncio.wait_for(asyncio.gather(*two, *wanting(gathering, 3)), 10)
    assert claims.asked == [["uid-0"], ["uid-1", "uid-2", "uid-3"]]


@pytest.mark.parametrize(
    "pace", [{"quiet_period": 0.05}, {"max_wait": 0.05}], ids=["nobody_comes_any_more", "it_waits_no_longer"]
)
async def test_a_claim_does_not_wait_for_enough_for_ever(claims: Claims, pace: dict[str, float]):
    claims.answer_everybody()
    claims.contended = True
    gathering = gathering_of(claims, msgspec.structs.replace(PATIENT, **pace))
    await gathering.submit(want(0))
    await asyncio.wait_for(asyncio.gather(*wanting(gathering, 1, 2)), 10)
    assert claims.asked == [["uid-0"], ["uid-1", "uid-2"]]


@pytest.mark.parametrize(
    "rest", [{"max_wait": 80.0}, {"contention_timeout": 80.0}], ids=["rest", "others_are_gone"]
)
async def test_those_who_come_after_a_rest_go_at_once_though_others_wrote_before(
    claims: Claims, rest: dict[str, float]
):
    seconds = 0.0
    claims.answer_everybody()
    claims.contended = True
    pace = msgspec.structs.replace(PATIENT, **{"max_wait": 6000.0, "contention_timeout": 6000.0, **rest})
    gathering = gathering_of(claims, pace, lambda: seconds)
    await gathering.submit(want(0))
    seconds = 101.0
    await asyncio.wait_for(asyncio.gather(*wanting(gathering, 1, 2)), 10)
    assert claims.asked == [["uid-0"], ["uid-1", "uid-2"]]


async def test_the_pages_are_read_before_a_claim_as_long_as_others_write_them(claims: Claims):
    claims.answer_everybody()
    gathering = gathering_of(claims, msgspec.structs.replace(PATIENT, full_batch=1))
    reads = []
    for number, (contended, others_wrote) in enumerate(
        [(False, False), (True, False), (False, True), (False, False), (False, False)]
    ):
        claims.contended, claims.others_wrote = contended, others_wrote
        await gathering.submit(want(number))
        reads.append(claims.reads)
    assert reads == [0, 0, 1, 2, 2]


async def test_pages_that_cannot_be_read_are_an_error_of_that_claim_alone(claims: Claims):
    claims.answer_everybody()
    claims.contended = True
    gathering = gathering_of(claims, msgspec.structs.replace(PATIENT, full_batch=1))
    await gathering.submit(want(0))
    claims.unreadable = TemporaryError("no API server")
    with pytest.raises(TemporaryError, match="no API server"):
        await gathering.submit(want(1))
    claims.unreadable = None
    assert uid_of(await gathering.submit(want(1))) == "uid-1"


async def test_overtaken_though_it_had_read_the_pages_a_claim_gives_way_once_and_then_insists(claims: Claims):
    claims.answer_everybody()
    claims.contended = claims.others_are_quicker = True
    gathering = gathering_of(claims, msgspec.structs.replace(PATIENT, full_batch=1))
    for number in range(2):
        assert uid_of(await gathering.submit(want(number))) == f"uid-{number}"
    assert claims.asked == [["uid-0"], ["uid-1"], ["uid-1"]]


async def test_who_asks_again_while_a_claim_gives_way_is_answered_like_the_one_before(claims: Claims):
    claims.contended = claims.others_are_quicker = True
    gathering = gathering_of(claims, msgspec.structs.replace(PATIENT, full_batch=1))
    claims.go.release()
    await gathering.submit(want(0))
    before = wanting(gathering, 1)
    await wait_until(lambda: claims.asked[1:] == [["uid-1"]])
    again = wanting(gathering, 1)
    await asyncio.wait(again, timeout=0.05)
    claims.answer_everybody()
    both = await asyncio.wait_for(asyncio.gather(*before, *again), 10)
    assert [uid_of(answer) for answer in both] == ["uid-1", "uid-1"]
    assert claims.asked == [["uid-0"], ["uid-1"], ["uid-1"]]
