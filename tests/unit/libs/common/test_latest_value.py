"""LatestValue gives the newest value once."""

import asyncio

from libs.common.latest_value import LatestValue


async def test_a_newer_value_replaces_one_that_was_not_taken():
    latest = LatestValue[str]()
    latest.put("old")
    latest.put("new")
    assert await latest.take() == "new"


async def test_a_task_waits_for_a_value_that_was_not_taken():
    latest = LatestValue[str]()
    latest.put("first")
    assert await latest.take() == "first"
    waiting = asyncio.create_task(latest.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    latest.put("second")
    assert await waiting == "second"


async def test_a_newer_value_is_taken_in_place_of_a_taken_one():
    latest = LatestValue[str]()
    assert latest.take_newer("taken") == "taken"
    latest.put("newer")
    assert latest.take_newer("taken") == "newer"
    assert latest.take_newer("newer") == "newer"
