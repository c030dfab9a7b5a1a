"""A watcher that is cancelled at the very moment at which it loses the leadership."""

import asyncio
from collections.abc import Callable

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from services.watcher.leader_elector import LeadershipLost
from tests.bus_actors import wait_until
from tests.watcher_actors import ScriptedNodes, make_watcher


class LosesOnce:
    """An elector that acquires at once, and loses the first term when a test sets `is_lost`."""

    def __init__(self) -> None:
        self.on_loss: list[Callable[[], object]] = []
        self.terms = 0
        self.is_lost = asyncio.Event()

    async def acquire(self) -> int:
        self.terms += 1
        return 0

    async def renew(self, on_renewed: Callable[[], None]) -> None:
        if self.terms > 1:
            await asyncio.Event().wait()
        await self.is_lost.wait()
        for call in self.on_loss:
            call()
        raise LeadershipLost("another watcher leads")

    async def confirm_leadership(self) -> None: ...

    async def release(self) -> None: ...

    def problems(self) -> tuple[str, ...]:
        return ()


async def test_a_watcher_that_is_cancelled_as_it_loses_the_leadership_does_not_lead_again():
    elector = LosesOnce()
    watcher = make_watcher(
        MemoryBus(MemoryServer()), ScriptedNodes().source, candidacy=elector, observe_only=True
    )
    running = asyncio.create_task(watcher.run())
    elector.on_loss.append(running.cancel)
    try:
        await wait_until(lambda: elector.terms == 1 and watcher.problems() == (), "it leads")
        elector.is_lost.set()
        await wait_until(lambda: running.done() or elector.terms > 1, "it ends, or leads again")
        assert elector.terms == 1
    finally:
        running.cancel()
