"""Faults that kube-apiserver's clients see in its answers, from the proxy in front of it."""

from collections.abc import Iterator, Sequence
from typing import Final

from libs.testbed.sim_apiserver.faults import (
    ConflictFault,
    EmptyClose,
    ExpiredFault,
    HalfOpenFault,
    ServerFault,
    TooManyRequestsFault,
)
from tests.chaos.fault import Fault, FaultSite

_WATCH: Final = ("watch",)
_EVERY_VERB: Final = ("get", "list", "watch", "create", "update", "patch", "delete")
# The fault, the verbs of the requests, and how many of these requests have one with the fault.
_ANSWERS: Final[dict[str, tuple[ServerFault, Sequence[str], int]]] = {
    "api-429": (TooManyRequestsFault(retry_after_seconds=1), _EVERY_VERB, 2),
    "api-410": (ExpiredFault(), ("watch", "list"), 1),
    "api-conflicts": (ConflictFault(), ("update", "patch"), 2),
    "api-watch-half-open": (HalfOpenFault(), _WATCH, 1),
    "api-watch-empty-closes": (EmptyClose(), _WATCH, 1),
}


def _list_api_faults() -> Iterator[Fault]:
    for name, (fault, verbs, every) in _ANSWERS.items():
        yield _make_fault(name, fault, verbs, every)


def _make_fault(name: str, fault: ServerFault, verbs: Sequence[str], every: int) -> Fault:
    async def inject(site: FaultSite) -> None:
        site.cluster.api_proxy.inject(fault, verbs=verbs, every=every)

    async def heal(site: FaultSite) -> None:
        site.cluster.api_proxy.heal()

    return Fault(name=name, target="api-answers", inject=inject, heal=heal)


API_FAULTS: Final[Sequence[Fault]] = tuple(_list_api_faults())
