"""Figures of certificates that are requested while the leading watcher is killed, and the promises. Pure."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from libs.testbed.kubelets_in_go import GoCertificateRequest
from tests.bench.figures import Figures, compute_issued_figures

STABLE_SECONDS: Final = 10.0  # all are ready that long before readiness counts as restored
READY_SECONDS: Final = 60.0  # promised: all processes are ready again so long after the kill
READY_AGAIN: Final = "killed to all ready s"
NEXT_LEADER: Final = "killed to next leader s"
TAINTED: Final = "Nodes with the taint at the end"
MISSING: Final = "Nodes missing at the end"
_UNISSUED: Final = "never issued"  # counts newest requests only
_DENIED: Final = "requests denied"
_BEFORE: Final = "requests issued before the kill"
_MIDDLE: Final = 0.8  # share of all nodes: a leader killed later leaves too few requests to the next one

Samples = Sequence[tuple[float, bool]]  # Unix seconds, and whether all processes were ready


def find_ready_again(samples: Samples, killed_at: float) -> float:
    """Seconds from the kill until all processes were ready and stayed so for ten seconds; NaN if never."""
    since: float | None = None
    for at, is_ready in samples:
        if at < killed_at or not is_ready:
            since = None
            continue
        since = at if since is None else since
        if at - since >= STABLE_SECONDS:
            return since - killed_at
    return math.nan


def find_newest(requests: Iterable[GoCertificateRequest]) -> list[GoCertificateRequest]:
    """The newest request of each node; those of a node are in the order of creation."""
    return list({request.node: request for request in requests}.values())


def compute_request_figures(requests: Sequence[GoCertificateRequest], killed_at: float) -> Figures:
    """Figures of requests that all nodes filed together; `killed_at` is in Unix seconds.

    A node needs the certificate of its newest request. An older one without an answer is superseded.
    """
    newest = find_newest(requests)
    older = {request.name for request in requests} - {request.name for request in newest}
    begun = min(request.begun for request in requests)
    return {
        "requests filed": float(len(requests)),
        _BEFORE: float(sum(0 < request.issued < killed_at for request in requests)),
        "requests issued": float(sum(request.issued > 0 for request in requests)),
        "older requests superseded": float(
            sum(not (request.issued or request.denied) for request in requests if request.name in older)
        ),
        _DENIED: float(sum(request.denied > 0 for request in requests)),
        "first request to kill s": killed_at - begun,
        "killed to last issued s": max((each.issued for each in newest), default=math.nan) - killed_at,
        "all filed s": max(request.filed for request in requests) - begun,
    } | compute_issued_figures(newest, begun)


def find_leader_problems(figures: Figures, *, nodes: int, settled: bool) -> list[str]:
    """The promises that did not hold."""
    found = [] if settled else ["our services still sent requests at the end"]
    for name, words in (
        ("never untainted", "nodes did not lose their taint in time"),
        (_UNISSUED, "nodes did not get the certificate of their newest request"),
        (_DENIED, "requests were denied"),
        (TAINTED, "nodes have the taint at the end"),
        (MISSING, "nodes are missing at the end"),
    ):
        if figures[name]:
            found.append(f"{figures[name]:.0f} {words}")
    if math.isnan(figures[NEXT_LEADER]):
        found.append("the leader was not killed, or no other one followed")
    elif figures[_BEFORE] > _MIDDLE * nodes:
        found.append(
            f"the bench killed the leader too late, when {figures[_BEFORE]:.0f} requests were issued"
        )
    if not figures[READY_AGAIN] <= READY_SECONDS:
        found.append(f"not all processes were ready again within {READY_SECONDS:g} s")
    return found
