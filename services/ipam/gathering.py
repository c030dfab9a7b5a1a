"""Many Nodes, one write: who wants a block waits for those who want one at the same time."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from libs.common.delivery import PermanentError, TemporaryError
from services.ipam.plan import Answer, Want

PAUSE_SECONDS: Final = 0.3  # between two writes of a page: what comes meanwhile shares the second one


class Answered(msgspec.Struct, frozen=True):
    """What a want came to."""

    answer: Answer
    is_new: bool = True  # False: the claim was there already, and somebody else may be about to write it


Waiting = tuple[Want, "asyncio.Future[Answered]"]
Claim = Callable[[Sequence[Want]], Awaitable[Mapping[str, Answered]]]


class Gathering:
    """The first want goes at once; those that come while it is under way, or soon after, together."""

    def __init__(
        self, claim: Claim, *, clock: Callable[[], float], pause_seconds: float = PAUSE_SECONDS
    ) -> None:
        """`clock` is monotonic, in seconds."""
        self._claim = claim
        self._clock = clock
        self._pause_seconds = pause_seconds
        self._wants: dict[str, Waiting] = {}
        self._last = float("-inf")
        self._running: asyncio.Task[None] | None = None

    async def answer(self, want: Want) -> Answered:
        """What the claim came to. Raises what it raised."""
        known = self._wants.get(want.uid)
        future = known[1] if known else asyncio.get_running_loop().create_future()
        self._wants[want.uid] = (want, future)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await asyncio.shield(future)

    async def end(self) -> None:
        """Nobody waits any more."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def _run(self) -> None:
        while self._wants:
            left = self._last + self._pause_seconds - self._clock()
            await asyncio.sleep(max(0.0, min(self._pause_seconds, left)))
            wants, self._wants = list(self._wants.values()), {}
            await self._answer(wants)
            self._last = self._clock()

    async def _answer(self, wants: "Sequence[Waiting]") -> None:
        try:
            answers = await self._claim([want for want, _ in wants])
        except (TemporaryError, PermanentError) as error:
            _fail(wants, error)
        except Exception as error:  # noqa: BLE001 - a defect that one Node hits must not keep all the others waiting
            if len(wants) == 1:
                _fail(wants, error)
            else:
                for alone in wants:
                    await self._answer([alone])
        except BaseException:
            _fail(wants, TemporaryError("ipam ends"))
            raise
        else:
            for want, future in wants:
                future.set_result(answers[want.uid])


def _fail(wants: "Sequence[Waiting]", error: Exception) -> None:
    for _, future in wants:
        if not future.done():
            future.set_exception(error)
            future.exception()  # whoever waited may be gone
