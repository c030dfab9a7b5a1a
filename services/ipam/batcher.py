"""Many Nodes, one write: who wants a block waits for those who want one at the same time."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from libs.common.bus.delivery import PermanentError, TemporaryError
from services.ipam.allocation_plan import AllocationRequest, AllocationResult


class BatchTiming(msgspec.Struct, frozen=True, kw_only=True):
    """When those who wait go together, in seconds since others went. Who comes after rest goes at once."""

    interval: float = 0.3  # between two writes of a page: what comes meanwhile shares the second one
    # A claim that takes long has an API server, or a core, with much to do: then more share the next one. No
    # Node waits in vain, since what else it needs takes as much longer.
    intervals_per_claim: float = 3.0
    max_interval: float = 1.0
    # While other replicas write the same pages, a write of ours often costs one that is refused, ours or
    # theirs. So we write seldom then, as long as more Nodes keep coming.
    quiet_period: float = 0.5  # nobody came for so long
    max_wait: float = 4.0
    full_batch: int = 50  # Nodes, which then go as soon as `pause` allows
    contention_timeout: float = 10.0  # after which nobody else is taken to write these pages


_DEFAULT_TIMING: Final = BatchTiming()


class RequestResult(msgspec.Struct, frozen=True):
    """What a want came to."""

    result: AllocationResult
    is_new: bool = True  # False: the claim was there already, and somebody else may be about to write it


class BatchResult(msgspec.Struct, frozen=True):
    """What the wants of one claim came to, by uid; none if it gave way to another replica."""

    results: Mapping[str, RequestResult]
    is_contended: bool = False  # another replica was quicker with a page


PendingRequest = tuple[AllocationRequest, "list[asyncio.Future[RequestResult]]"]
ClaimFunction = Callable[
    [Sequence[AllocationRequest], bool], Awaitable[BatchResult]
]  # False: it may give way


class ContentionBackoff:
    """What replicas that write the same pages owe one another, by what the claims of this one have met."""

    def __init__(self, read_pages: Callable[[], Awaitable[bool]]) -> None:
        """`read_pages` says whether others have written since."""
        self._read_pages = read_pages
        self.is_contended = False  # what is known of the pages is old, most likely
        self._has_yielded = False

    async def claim(self, requests: Sequence[AllocationRequest], claim: ClaimFunction) -> BatchResult:
        """Where others write, the pages are read first: a write at an old version would be refused.

        Overtaken all the same, it gives way once: with those that come meanwhile, they go later.
        """
        others_wrote = self.is_contended and await self._read_pages()
        claimed = await claim(requests, self._has_yielded or not self.is_contended)
        self._has_yielded = not claimed.results
        self.is_contended = others_wrote or claimed.is_contended
        return claimed


class Batcher:
    """The first want goes at once; those that come while it is under way, or soon after, together."""

    def __init__(
        self,
        claim: ClaimFunction,
        read_pages: Callable[[], Awaitable[bool]],
        *,
        clock: Callable[[], float],
        random: random.Random,
        timing: BatchTiming = _DEFAULT_TIMING,
    ) -> None:
        """`clock` is monotonic, in seconds. `read_pages` says whether others have written since."""
        self._claim = claim
        self._contention = ContentionBackoff(read_pages)
        self._clock = clock
        self._random = random
        self._timing = timing
        self._pending: dict[str, PendingRequest] = {}
        self._has_new_request = asyncio.Event()
        self._last_claim_at = float("-inf")
        self._last_claim_seconds = 0.0
        self._contended_at = float("-inf")  # when another replica's write was last met
        self._task: asyncio.Task[None] | None = None

    async def submit(self, request: AllocationRequest) -> RequestResult:
        """What the claim came to. Raises what it raised."""
        future: asyncio.Future[RequestResult] = asyncio.get_running_loop().create_future()
        known = self._pending.get(request.uid)
        self._pending[request.uid] = (request, [*(known[1] if known else ()), future])
        if known is None:
            self._has_new_request.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await future

    async def close(self) -> None:
        """Nobody waits any more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        _set_exceptions(list(self._pending.values()), TemporaryError("ipam ends"))

    async def _run(self) -> None:
        while self._pending:
            pause = self._interval()
            await asyncio.sleep(max(0.0, min(pause, self._last_claim_at + pause - self._clock())))
            # One alone is no burst: it would wait in vain, and so would the next one that joins by itself.
            if (
                len(self._pending) > 1
                and self._clock() - self._contended_at < self._timing.contention_timeout
            ):
                await self._wait_for_more()
            wants, self._pending = list(self._pending.values()), {}
            began = self._clock()
            await self._resolve_batch(wants)
            self._last_claim_at = self._clock()
            self._last_claim_seconds = self._last_claim_at - began

    def _interval(self) -> float:
        wanted = self._last_claim_seconds * self._timing.intervals_per_claim
        return max(self._timing.interval, min(self._timing.max_interval, wanted))

    async def _wait_for_more(self) -> None:
        # Not all replicas after the same time: two that have met once would meet ever after.
        until = self._last_claim_at + self._timing.max_wait * self._random.uniform(0.75, 1.25)
        while len(self._pending) < self._timing.full_batch and (left := until - self._clock()) > 0:
            self._has_new_request.clear()
            try:
                async with asyncio.timeout(min(self._timing.quiet_period, left)):
                    await self._has_new_request.wait()
            except TimeoutError:
                return

    async def _claim_batch(self, requests: Sequence[AllocationRequest]) -> Mapping[str, RequestResult]:
        claimed = await self._contention.claim(requests, self._claim)
        if self._contention.is_contended:
            self._contended_at = self._clock()
        return claimed.results

    async def _resolve_batch(self, batch: "Sequence[PendingRequest]") -> None:
        try:
            answers = await self._claim_batch([want for want, _ in batch])
        except (TemporaryError, PermanentError) as error:
            _set_exceptions(batch, error)
        except Exception as error:  # noqa: BLE001 - a defect that one Node hits must not keep all the others waiting
            if len(batch) == 1:
                _set_exceptions(batch, error)
            else:
                await self._resolve_individually(batch)
        except BaseException:
            _set_exceptions(batch, TemporaryError("ipam ends"))
            raise
        else:
            for want, futures in batch:
                if answers:
                    _set_results(futures, answers[want.uid])
                else:
                    self._requeue(want, futures)

    async def _resolve_individually(self, batch: "Sequence[PendingRequest]") -> None:
        try:
            for alone in batch:
                await self._resolve_batch([alone])
        except BaseException:
            _set_exceptions(batch, TemporaryError("ipam ends"))
            raise

    def _requeue(self, request: AllocationRequest, futures: "list[asyncio.Future[RequestResult]]") -> None:
        newer, more = self._pending.get(request.uid, (request, []))
        self._pending[request.uid] = (newer, futures + more)


def _set_results(futures: "Sequence[asyncio.Future[RequestResult]]", result: RequestResult) -> None:
    for future in futures:
        if not future.done():  # whoever waited may be gone
            future.set_result(result)


def _set_exceptions(batch: "Sequence[PendingRequest]", error: Exception) -> None:
    for _, futures in batch:
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever waited may be gone
