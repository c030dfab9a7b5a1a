"""Pod CIDRs: figures of a burst that gets them, compared with the burst without."""

from collections.abc import Sequence
from ipaddress import ip_network
from itertools import groupby
from typing import Final

from libs.testbed.kubelets_in_go import GoNodeJoin
from tests.bench.costs import compare_cpu, remove_group
from tests.bench.figures import Figures, compute_ratio, compute_times, find_begin, list_broken

RATIO: Final = "usable with pod CIDRs / without"
WITHOUT: Final = "without pod CIDRs: "
_CLAIMS: Final = "pod CIDRs: ConfigMap writes per node"
_PATCHES: Final = "pod CIDRs: Node patches per node"
_KUBERNETES: Final = "Kubernetes: "
_OF_CLAIMS: Final = tuple(f"{_KUBERNETES}{verb} configmaps" for verb in ("create", "update"))
_SERVED_PROMISES: Final = {
    "never with pod CIDRs": "nodes did not get pod CIDRs in time",
    "pod CIDRs: given twice": "pod CIDRs overlap another one",
    "pod CIDRs: nodes without both families": "nodes do not have one pod CIDR of each family",
}
_MOST_TIMES: Final = 1.3  # promised: relative to the burst without
_MOST_CLAIMS: Final = 0.1  # writes per node
_ENOUGH: Final = 1000  # with fewer nodes the figures depend on seconds, not on nodes


def compute_served_figures(nodes: Sequence[GoNodeJoin]) -> Figures:
    """Time until nodes are usable: no taint, with pod CIDRs. Nodes that never are usable are only counted."""
    begun = find_begin(nodes)
    ends = (max(node.untainted, node.served) if node.untainted and node.served else 0.0 for node in nodes)
    usable = compute_times("usable", zip((node.begun for node in nodes), ends, strict=True), begun)
    del usable["never usable"]
    served = compute_times("with pod CIDRs", ((node.begun, node.served) for node in nodes), begun)
    return {name: served[name] for name in ("all with pod CIDRs s", "never with pod CIDRs")} | usable


def compute_carried_figures(carried: Sequence[tuple[str, ...]]) -> Figures:
    """Blocks of Nodes that overlap another one, and Nodes without one block of each family."""
    blocks = [ip_network(block) for each in carried for block in each]
    spans = sorted((block.version, int(block[0]), int(block[-1])) for block in blocks)
    families = [sorted(ip_network(block).version for block in each) for each in carried]
    return {
        "pod CIDRs: given twice": float(_count_overlapping(spans)),
        "pod CIDRs: nodes without both families": float(sum(family != [4, 6] for family in families)),
    }


def _count_overlapping(spans: Sequence[tuple[int, int, int]]) -> int:
    """How many of the sorted spans start before an earlier one of their family ends."""
    found = 0
    for _, family in groupby(spans, key=lambda span: span[0]):
        reached = -1
        for _, first, last in family:
            found += first <= reached
            reached = max(reached, last)
    return found


def compare_bursts(without: Figures, served: Figures) -> Figures:
    """The figures of the burst with pod CIDRs, and their differences from the burst without.

    In one process all services use one user, so only the difference shows the requests of ipam.
    """
    patches = f"{_KUBERNETES}patch nodes per node"
    every = f"{_KUBERNETES}all per node"
    refused = [f"{kind} (refused) per node" for kind in (*_OF_CLAIMS, f"{_KUBERNETES}patch nodes")]
    first = {
        RATIO: compute_ratio(served["all usable s"], without["all untainted s"]),
        **compare_cpu(without, served),
        _PATCHES: served.get(patches, 0.0) - without.get(patches, 0.0),
        _CLAIMS: sum(served.get(f"{kind} per node", 0.0) for kind in _OF_CLAIMS),
        "pod CIDRs: refused writes per node": sum(served.get(kind, 0.0) for kind in refused),
        "pod CIDRs: requests per node in all": served[every] - without[every],
        "pod CIDRs: CPU per node ms": served["ours: CPU per node ms"] - without["ours: CPU per node ms"],
    }
    shown = ("all untainted s", "untainted p50 ms", "untainted p99 ms", "never untainted")
    baseline = {f"{WITHOUT}{name}": without[name] for name in shown} | remove_group(without, WITHOUT)
    return first | served | baseline


def find_pod_cidr_problems(figures: Figures, *, nodes: int) -> list[str]:
    """The promises that did not hold."""
    found = find_served_problems(figures)
    if nodes >= _ENOUGH and figures[RATIO] > _MOST_TIMES:
        found.append(f"with pod CIDRs it took more than {_MOST_TIMES} times as long")
    if nodes >= _ENOUGH and figures[_CLAIMS] > _MOST_CLAIMS:
        found.append(f"more than {_MOST_CLAIMS} writes of claims per node")
    return found


def find_served_problems(figures: Figures) -> list[str]:
    """Nodes without pod CIDRs, and pod CIDRs that overlap."""
    return list_broken(figures, _SERVED_PROMISES)
