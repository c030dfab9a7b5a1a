"""Faults of the connections between the processes and NATS, kube-apiserver, Talos or the collector."""

from collections.abc import Iterator, Sequence
from typing import Final

from tests.chaos.cluster import ChaosCluster
from tests.chaos.fault import Fault, FaultSite, heal_nothing
from tests.chaos.fault_proxy import BLACK_HOLE, CUT, HEALTHY, LinkState
from tests.chaos.links import PROCESS_LINKS, Link

_STATES: Final = {
    "cut": CUT,
    "delayed": LinkState(delay_seconds=0.4),
    "throttled": LinkState(bytes_per_second=30_000),
    "one-way": LinkState(blocked=("to-client",)),  # requests arrive, answers do not
    "black-holed": BLACK_HOLE,
}


def _list_link_faults() -> Iterator[Fault]:
    for link in PROCESS_LINKS:
        for name, state in _STATES.items():
            yield _make_fault(f"{link}-link-{name}", link, state)
    # Only the first watcher is affected. The other replica still reaches everything.
    yield _make_fault("nats-link-of-one-watcher-cut", "nats", CUT, process="watcher")
    yield _make_fault("api-link-of-one-watcher-black-holed", "api", BLACK_HOLE, process="watcher")

    yield Fault(
        name="collector-black-holed",
        target="collector-link",
        inject=_black_hole_collector,
        heal=heal_nothing,  # it stays silent until the run has ended
        hold_seconds=(0.0, 0.0),
    )


async def _black_hole_collector(site: FaultSite) -> None:
    site.cluster.links.set_state("collector", BLACK_HOLE)


def _make_fault(name: str, link: Link, state: LinkState, process: str | None = None) -> Fault:
    def set_link(cluster: ChaosCluster, to: LinkState) -> None:
        only = "all-in-one" if process is not None and cluster.mode == "all-in-one" else process
        cluster.links.set_state(link, to, only)

    async def inject(site: FaultSite) -> None:
        set_link(site.cluster, state)

    async def heal(site: FaultSite) -> None:
        set_link(site.cluster, HEALTHY)

    return Fault(name=name, target=f"{link}-link", inject=inject, heal=heal)


LINK_FAULTS: Final[Sequence[Fault]] = tuple(_list_link_faults())
