"""Who wants a block waits for those who want one at the same time; nobody waits for ever."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from libs.common.delivery import TemporaryError
from services.ipam.gathering import Answered, Gathering
from services.ipam.plan import Assigned, Want
from tests.bus_actors import eventually


def want(number: int) -> Want:
    return Want(uid=f"uid-{number}", node=f"web-{number}", pools=())


def uid_of(answered: object) -> str:
    assert isinstance(answered, Answered)
    assert isinstance(answered.answer, Assigned)
    return answered.answer.uid


class Claims:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.go = asyncio.Semaphore(0)
        self.error: dict[str, Exception] = {}

    async def __call__(self, wants: Sequence[Want]) -> Mapping[str, Answered]:
        self.asked.append([each.uid for each in wants])
        await self.go.acquire()
        for each in wants:
            if each.uid in self.error:
                raise self.error[each.uid]
        return {each.uid: Answered(Assigned(uid=each.uid, pod_cidrs=("10.0.0.0/24",))) for each in wants}


@pytest.fixture
def claims() -> Claims:
    return Claims()


def gathering_of(claims: Claims) -> Gathering:
    return Gathering(claims, clock=asyncio.get_running_loop().time, pause_seconds=0.05)


async def test_the_first_goes_at_once_and_those_that_come_meanwhile_go_together(claims: Claims):
    gathering = gathering_of(claims)
    first = asyncio.create_task(gathering.answer(want(0)))
    await eventually(lambda: claims.asked == [["uid-0"]])
    others = [asyncio.create_task(gathering.answer(want(number))) for number in range(1, 5)]
    claims.go.release()
    claims.go.release()
    answers = await asyncio.gather(first, *others)
    assert [uid_of(answer) for answer in answers] == [f"uid-{n}" for n in range(5)]
    assert claims.asked == [["uid-0"], [f"uid-{n}" for n in range(1, 5)]]


async def test_one_that_gives_up_keeps_nobody_waiting(claims: Claims):
    gathering = gathering_of(claims)
    given_up = asyncio.create_task(gathering.answer(want(0)))
    await eventually(lambda: len(claims.asked) == 1)
    given_up.cancel()
    other = asyncio.create_task(gathering.answer(want(1)))
    claims.go.release()
    claims.go.release()
    assert uid_of(await other) == "uid-1"


async def test_what_the_world_refuses_everybody_hears_and_the_next_want_is_another_try(claims: Claims):
    gathering = gathering_of(claims)
    claims.error["uid-0"] = TemporaryError("no API server")
    claims.go.release()
    with pytest.raises(TemporaryError, match="no API server"):
        await gathering.answer(want(0))
    claims.error.clear()
    claims.go.release()
    assert uid_of(await gathering.answer(want(0))) == "uid-0"


async def test_a_defect_that_one_of_them_hits_is_that_one_s_alone(claims: Claims):
    gathering = gathering_of(claims)
    claims.error["uid-1"] = ZeroDivisionError("a defect")
    tasks = [asyncio.create_task(gathering.answer(want(number))) for number in range(3)]
    for _ in range(4):
        claims.go.release()
    first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
    assert uid_of(first) == "uid-0"
    assert isinstance(second, ZeroDivisionError)
    assert uid_of(third) == "uid-2"


async def test_the_end_of_the_process_leaves_nobody_waiting(claims: Claims):
    gathering = gathering_of(claims)
    task = asyncio.create_task(gathering.answer(want(0)))
    await eventually(lambda: len(claims.asked) == 1)
    await gathering.end()
    with pytest.raises(TemporaryError, match="ipam ends"):
        await task
