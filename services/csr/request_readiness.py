"""Whether csr can decide by the stream cache: the cache is complete, and the watcher watches requests."""

from typing import Final

from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import SnapshotComplete
from libs.common.contract.subjects import SNAPSHOT

_REQUESTS_NOT_WATCHED: Final = (
    "the watcher does not watch certificate requests: its --controllers omits node-csr-approval, or it lacks "
    "the RBAC rule to list and watch certificatesigningrequests"
)


def find_readiness_problems(table: StreamCache) -> tuple[str, ...]:
    """Return why csr can decide no request, in words for /readyz."""
    problems = table.problems()
    if problems:
        return problems
    snapshot = table.get(SNAPSHOT)
    event = snapshot.event if snapshot else None
    requests = event.requests if isinstance(event, SnapshotComplete) else None
    return (_REQUESTS_NOT_WATCHED,) if requests is None else ()
