"""Many Nodes, one write: who wants a block waits for those who want one at the same time."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from libs.common.delivery import PermanentError, TemporaryError
from services.ipam.plan import Answer, Want


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """When those who wait go together, in seconds since others went. Who comes after rest goes at once."""

    pause: float = 0.3  # between two writes of a page: what comes meanwhile shares the second one
    # A claim that takes long has an API server, or a core, with much to do: then more share the next one. No
    # Node waits in vain, since what else it needs takes as much longer.
    pauses_per_claim: float = 3.0
    longest_pause: float = 1.0
    # While other replicas write the same pages, a write of ours often costs one that is refused, ours or
    # theirs. So we write seldom then, as long as more Nodes keep coming.
    lull: float = 0.5  # nobody came for so long
    longest: float = 4.0
    enough: int = 50  # Nodes, which then go as soon as `pause` allows
    others_leave: float = 10.0  # after which nobody else is taken to write these pages


_PACE: Final = Pace()


class Answered(msgspec.Struct, frozen=True):
    """What a want came to."""

    answer: Answer
    is_new: bool = True  # False: the claim was there already, and somebody else may be about to write it


class Together(msgspec.Struct, frozen=True):
    """What the wants of one claim came to, by uid; none if it gave way to another replica."""

    answers: Mapping[str, Answered]
    contended: bool = False  # another replica was quicker with a page


Waiting = tuple[Want, "list[asyncio.Future[Answered]]"]
Claim = Callable[[Sequence[Want], bool], Awaitable[Together]]  # False: it may give way


class GivingWay:
    """What replicas that write the same pages owe one another, by what the claims of this one have met."""

    def __init__(self, read_pages: Callable[[], Awaitable[bool]]) -> None:
        """`read_pages` says whether others have written since."""
        self._read_pages = read_pages
        self.others_write = False  # what is known of the pages is old, most likely
        self._gave_way = False

    async def claim(self, wants: Sequence[Want], claim: Claim) -> Together:
        """Where others write, the pages are read first: a write at an old version would be refused.

        Overtaken all the same, it gives way once: with those that come meanwhile, they go later.
        """
        others_wrote = self.others_write and await self._read_pages()
        claimed = await claim(wants, self._gave_way or not self.others_write)
        self._gave_way = not claimed.answers
        self.others_write = others_wrote or claimed.contended
        return claimed


class Gathering:
    """The first want goes at once; those that come while it is under way, or soon after, together."""

    def __init__(
        self,
        claim: Claim,
        read_pages: Callable[[], Awaitable[bool]],
        *,
        clock: Callable[[], float],
        random: random.Random,
        pace: Pace = _PACE,
    ) -> None:
        """`clock` is monotonic, in seconds. `read_pages` says whether others have written since."""
        self._claim = claim
        self._giving_way = GivingWay(read_pages)
        self._clock = clock
        self._random = random
        self._pace = pace
        self._wants: dict[str, Waiting] = {}
        self._one_came = asyncio.Event()
        self._last = float("-inf")
        self._took = 0.0
        self._met = float("-inf")  # when another replica's write was last met
        self._running: asyncio.Task[None] | None = None

    async def answer(self, want: Want) -> Answered:
        """What the claim came to. Raises what it raised."""
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        known = self._wants.get(want.uid)
        self._wants[want.uid] = (want, [*(known[1] if known else ()), future])
        if known is None:
            self._one_came.set()
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await future

    async def end(self) -> None:
        """Nobody waits any more."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        _fail(list(self._wants.values()), TemporaryError("ipam ends"))

    async def _run(self) -> None:
        while self._wants:
            pause = self._pause()
            await asyncio.sleep(max(0.0, min(pause, self._last + pause - self._clock())))
            # One alone is no burst: it would wait in vain, and so would the next one that joins by itself.
            if len(self._wants) > 1 and self._clock() - self._met < self._pace.others_leave:
                await self._while_more_come()
            wants, self._wants = list(self._wants.values()), {}
            began = self._clock()
            await self._answer(wants)
            self._last = self._clock()
            self._took = self._last - began

    def _pause(self) -> float:
        wanted = self._took * self._pace.pauses_per_claim
        return max(self._pace.pause, min(self._pace.longest_pause, wanted))

    async def _while_more_come(self) -> None:
        # Not all replicas after the same time: two that have met once would meet ever after.
        until = self._last + self._pace.longest * self._random.uniform(0.75, 1.25)
        while len(self._wants) < self._pace.enough and (left := until - self._clock()) > 0:
            self._one_came.clear()
            try:
                async with asyncio.timeout(min(self._pace.lull, left)):
                    await self._one_came.wait()
            except TimeoutError:
                return

    async def _claim_together(self, wants: Sequence[Want]) -> Mapping[str, Answered]:
        claimed = await self._giving_way.claim(wants, self._claim)
        if self._giving_way.others_write:
            self._met = self._clock()
        return claimed.answers

    async def _answer(self, wants: "Sequence[Waiting]") -> None:
        try:
            answers = await self._claim_together([want for want, _ in wants])
        except (TemporaryError, PermanentError) as error:
            _fail(wants, error)
        except Exception as error:  # noqa: BLE001 - a defect that one Node hits must not keep all the others waiting
            if len(wants) == 1:
                _fail(wants, error)
            else:
                await self._answer_one_by_one(wants)
        except BaseException:
            _fail(wants, TemporaryError("ipam ends"))
            raise
        else:
            for want, futures in wants:
                if answers:
                    _tell(futures, answers[want.uid])
                else:
                    self._again(want, futures)

    async def _answer_one_by_one(self, wants: "Sequence[Waiting]") -> None:
        try:
            for alone in wants:
                await self._answer([alone])
        except BaseException:
            _fail(wants, TemporaryError("ipam ends"))
            raise

    def _again(self, want: Want, futures: "list[asyncio.Future[Answered]]") -> None:
        newer, more = self._wants.get(want.uid, (want, []))
        self._wants[want.uid] = (newer, futures + more)


def _tell(futures: "Sequence[asyncio.Future[Answered]]", answered: Answered) -> None:
    for future in futures:
        if not future.done():  # whoever waited may be gone
            future.set_result(answered)


def _fail(wants: "Sequence[Waiting]", error: Exception) -> None:
    for _, futures in wants:
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever waited may be gone
