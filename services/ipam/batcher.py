"""Combines the requests of many Nodes that wait at the same time into one write."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from libs.common.bus.delivery import PermanentError, TemporaryError
from services.ipam.allocation_plan import AllocationRequest, AllocationResult


class BatchTiming(msgspec.Struct, frozen=True, kw_only=True):
    """The timing of batches, in seconds. After a pause, a request is processed at once."""

    interval: float = 0.3  # between two writes of a page: requests meanwhile share the second write
    # If a claim takes long, the API server or the CPU is busy, and larger batches help. Nodes lose no time:
    # their other steps take longer too.
    intervals_per_claim: float = 3.0
    max_interval: float = 1.0
    # While other replicas write the same pages, a write often fails for one of the two. So the batcher writes
    # rarely then, as long as more requests arrive.
    quiet_period: float = 0.5  # a batch ends after that time without a new request
    max_wait: float = 4.0
    full_batch: int = 50  # Nodes; such a batch ends as soon as `interval` allows
    contention_timeout: float = 10.0  # after that time without a conflict, other replicas count as idle


_DEFAULT_TIMING: Final = BatchTiming()


class RequestResult(msgspec.Struct, frozen=True):
    """The result of one request."""

    result: AllocationResult
    is_new: bool = True  # False: the claim existed already, and another replica may be about to write it


class BatchResult(msgspec.Struct, frozen=True):
    """The results of one claim by uid; none if it yielded to another replica."""

    results: Mapping[str, RequestResult]
    is_contended: bool = False  # another replica wrote a page first


PendingRequest = tuple[AllocationRequest, "list[asyncio.Future[RequestResult]]"]
ClaimFunction = Callable[
    [Sequence[AllocationRequest], bool], Awaitable[BatchResult]
]  # argument: never yield; False: it may yield


class ContentionBackoff:
    """Coordinates replicas that write the same pages, by the conflicts of this replica's claims."""

    def __init__(self, read_pages: Callable[[], Awaitable[bool]]) -> None:
        """`read_pages` returns whether other replicas have written since."""
        self._read_pages = read_pages
        self.is_contended = False  # the cached pages are probably out of date
        self._has_yielded = False

    async def claim(self, requests: Sequence[AllocationRequest], claim: ClaimFunction) -> BatchResult:
        """Claim; read the pages first under contention, because a write at an old version would fail.

        After a conflict it yields once: these requests join the next batch.
        """
        others_wrote = self.is_contended and await self._read_pages()
        claimed = await claim(requests, self._has_yielded or not self.is_contended)
        self._has_yielded = not claimed.results
        self.is_contended = others_wrote or claimed.is_contended
        return claimed


class Batcher:
    """Processes the first request at once, and later ones in batches."""

    def __init__(
        self,
        claim: ClaimFunction,
        read_pages: Callable[[], Awaitable[bool]],
        *,
        clock: Callable[[], float],
        random: random.Random,
        timing: BatchTiming = _DEFAULT_TIMING,
    ) -> None:
        """`clock` is monotonic, in seconds; `read_pages` returns whether other replicas have written."""
        self._claim = claim
        self._contention = ContentionBackoff(read_pages)
        self._clock = clock
        self._random = random
        self._timing = timing
        self._pending: dict[str, PendingRequest] = {}
        self._has_new_request = asyncio.Event()
        self._last_claim_at = float("-inf")
        self._last_claim_seconds = 0.0
        self._contended_at = float("-inf")  # time of the last conflict with another replica
        self._task: asyncio.Task[None] | None = None

    async def submit(self, request: AllocationRequest) -> RequestResult:
        """Return the result of the claim; raise its exception."""
        future: asyncio.Future[RequestResult] = asyncio.get_running_loop().create_future()
        known = self._pending.get(request.uid)
        self._pending[request.uid] = (request, [*(known[1] if known else ()), future])
        if known is None:
            self._has_new_request.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await future

    async def close(self) -> None:
        """Stop, and fail all pending requests."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        _set_exceptions(list(self._pending.values()), TemporaryError("ipam stops"))

    async def _run(self) -> None:
        while self._pending:
            pause = self._interval()
            await asyncio.sleep(max(0.0, min(pause, self._last_claim_at + pause - self._clock())))
            # A single request is no burst: waiting would not help it or the next single one.
            if (
                len(self._pending) > 1
                and self._clock() - self._contended_at < self._timing.contention_timeout
            ):
                await self._wait_for_more()
            batch, self._pending = list(self._pending.values()), {}
            began = self._clock()
            await self._resolve_batch(batch)
            self._last_claim_at = self._clock()
            self._last_claim_seconds = self._last_claim_at - began

    def _interval(self) -> float:
        wanted = self._last_claim_seconds * self._timing.intervals_per_claim
        return max(self._timing.interval, min(self._timing.max_interval, wanted))

    async def _wait_for_more(self) -> None:
        # Random, because two replicas that conflicted once would otherwise conflict at each write.
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
            answers = await self._claim_batch([request for request, _ in batch])
        except (TemporaryError, PermanentError) as error:
            _set_exceptions(batch, error)
        except Exception as error:  # noqa: BLE001 - a defect that one Node triggers must not block the others
            if len(batch) == 1:
                _set_exceptions(batch, error)
            else:
                await self._resolve_individually(batch)
        except BaseException:
            _set_exceptions(batch, TemporaryError("ipam stops"))
            raise
        else:
            for request, futures in batch:
                if answers:
                    _set_results(futures, answers[request.uid])
                else:
                    self._requeue(request, futures)

    async def _resolve_individually(self, batch: "Sequence[PendingRequest]") -> None:
        try:
            for alone in batch:
                await self._resolve_batch([alone])
        except BaseException:
            _set_exceptions(batch, TemporaryError("ipam stops"))
            raise

    def _requeue(self, request: AllocationRequest, futures: "list[asyncio.Future[RequestResult]]") -> None:
        newer, more = self._pending.get(request.uid, (request, []))
        self._pending[request.uid] = (newer, futures + more)


def _set_results(futures: "Sequence[asyncio.Future[RequestResult]]", result: RequestResult) -> None:
    for future in futures:
        if not future.done():  # the caller may have been cancelled
            future.set_result(result)


def _set_exceptions(batch: "Sequence[PendingRequest]", error: Exception) -> None:
    for _, futures in batch:
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # the caller may have been cancelled
