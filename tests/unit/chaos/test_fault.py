"""A fault is held for its time, and its failure is that of its run."""

import asyncio
from typing import cast

import pytest

from tests.chaos.fault import Fault, FaultFailed, FaultSite, hold_fault

NO_SITE = cast("FaultSite", None)  # the faults of this file act on nothing
SLOW_SECONDS = 0.2
HELD_SECONDS = 0.1


async def fail(_: FaultSite) -> None:
    raise OSError("the server is down")


async def test_a_fault_whose_injection_is_slow_is_held_as_long_as_any_other():
    loop = asyncio.get_running_loop()
    injected: list[float] = []
    healed: list[float] = []

    async def inject(_: FaultSite) -> None:
        await asyncio.sleep(SLOW_SECONDS)
        injected.append(loop.time())

    async def heal(_: FaultSite) -> None:
        healed.append(loop.time())

    await hold_fault(NO_SITE, Fault("slow", "", inject, heal), HELD_SECONDS)
    assert healed[0] - injected[0] >= HELD_SECONDS


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("one", "", fail), "one: inject failed.*server is down"),
        (Fault("one", "", lambda _: None, fail), "one: heal failed.*server is down"),
    ],
    ids=["inject", "heal"],
)
async def test_a_fault_that_cannot_be_injected_or_healed_fails_with_its_reason(fault: Fault, message: str):
    with pytest.raises(FaultFailed, match=message):
        await hold_fault(NO_SITE, fault, 0.0)
