"""Whether requests can be decided by the table: it is complete, and the watcher watches requests."""

from typing import Final

from libs.common.events import SnapshotComplete
from libs.common.flow_table import FlowTable
from libs.common.subjects import SNAPSHOT

_NO_REQUESTS: Final = (
    "the watcher watches no certificate requests: its --controllers leaves node-csr-approval out, or it may "
    "not list and watch certificatesigningrequests"
)


def why_undecidable(table: FlowTable) -> tuple[str, ...]:
    """Why no request can be decided, in words for /readyz."""
    problems = table.problems()
    if problems:
        return problems
    snapshot = table.last(SNAPSHOT)
    event = snapshot.event if snapshot else None
    requests = event.requests if isinstance(event, SnapshotComplete) else None
    return (_NO_REQUESTS,) if requests is None else ()
