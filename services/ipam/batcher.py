"""Combines the requests of many Nodes that wait at the same time into one write."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from libs.common.bus.delivery import PermanentError, TemporaryError
from services.ipam.core.allocation import AllocationRequest, AllocationResult

_MIN_PAUSE_SECONDS: Final = 0.3  # between two claims: requests meanwhile share the second one
# A claim takes long if the API server or the CPU is busy, or if other replicas write the same pages. Larger
# batches help in each case. Nodes lose no time: their other steps take longer too.
_MAX_PAUSE_SECONDS: Final = 3.0
_PAUSES_PER_CLAIM: Final = 3.0
_JITTER: Final = 0.25  # two replicas that conflicted once would otherwise conflict at each write

ClaimFunction = Callable[[Sequence[AllocationRequest]], Awaitable[Mapping[str, AllocationResult]]]
_Pending = tuple[AllocationRequest, "asyncio.Future[AllocationResult]"]


@dataclass(eq=False)
class Batcher:
    """Processes the first request after a pause at once, and later ones in batches."""

    claim: ClaimFunction  # returns the results by uid
    _: KW_ONLY
    clock: Callable[[], float]  # monotonic, in seconds
    random: random.Random

    def __post_init__(self) -> None:
        self._pending: dict[str, _Pending] = {}  # by uid; each Node submits one request at a time
        self._next_claim_at = float("-inf")
        self._lock = asyncio.Lock()

    async def submit(self, request: AllocationRequest) -> AllocationResult:
        """Return the result of the claim; raise its exception."""
        future: asyncio.Future[AllocationResult] = asyncio.get_running_loop().create_future()
        self._pending[request.uid] = (request, future)
        async with self._lock:
            if not future.done():  # else the request before this one has claimed for both
                await self._claim_pending()
        return await future

    async def _claim_pending(self) -> None:
        await asyncio.sleep(max(0.0, self._next_claim_at - self.clock()))
        batch, self._pending = list(self._pending.values()), {}
        began = self.clock()
        try:
            await self._resolve(batch)
        finally:  # all are resolved, unless this is cancelled
            _fail(batch, TemporaryError("ipam stops"))
        ended = self.clock()
        pause = min(_MAX_PAUSE_SECONDS, max(_MIN_PAUSE_SECONDS, _PAUSES_PER_CLAIM * (ended - began)))
        self._next_claim_at = ended + pause * self.random.uniform(1 - _JITTER, 1 + _JITTER)

    async def _resolve(self, batch: Sequence[_Pending]) -> None:
        try:
            results = await self.claim([request for request, _ in batch])
        except (TemporaryError, PermanentError) as error:
            _fail(batch, error)
        except Exception as error:  # noqa: BLE001 - a defect that one Node triggers must not block the others
            if len(batch) == 1:
                _fail(batch, error)
            else:
                for alone in batch:
                    await self._resolve([alone])
        else:
            for request, future in batch:
                future.set_result(results[request.uid])


def _fail(batch: Iterable[_Pending], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
            future.exception()  # the caller may have been cancelled
