"""Pod CIDRs: figures of a burst that gets them."""

from collections.abc import Sequence
from ipaddress import ip_network
from itertools import groupby
from typing import Final

from libs.testbed.kubelets_in_go import GoNodeJoin
from tests.bench.figures import Figures, compute_times, find_begin, list_broken

CLAIMS: Final = "pod CIDRs: ConfigMap writes per node"
_WRITES: Final = ("Kubernetes: create configmaps per node", "Kubernetes: update configmaps per node")
_PROMISES: Final = {
    "never with pod CIDRs": "nodes did not get pod CIDRs in time",
    "pod CIDRs: given twice": "pod CIDRs overlap another one",
    "pod CIDRs: nodes without both families": "nodes do not have one pod CIDR of each family",
}
_MOST_CLAIMS: Final = 0.1  # promised, writes per node
_ENOUGH: Final = 1000  # with fewer nodes the figure depends on seconds, not on nodes


def compute_pod_cidr_figures(
    nodes: Sequence[GoNodeJoin], carried: Sequence[tuple[str, ...]], requests: Figures
) -> Figures:
    """Figures of nodes that joined and their blocks; `requests` has the requests per node."""
    return {
        CLAIMS: sum(requests.get(name, 0.0) for name in _WRITES),
        **compute_served_figures(nodes),
        **compute_carried_figures(carried),
    }


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


def find_pod_cidr_problems(figures: Figures, *, nodes: int) -> list[str]:
    """The promises that did not hold."""
    found = list_broken(figures, _PROMISES)
    if nodes >= _ENOUGH and figures[CLAIMS] > _MOST_CLAIMS:
        found.append(f"more than {_MOST_CLAIMS} writes of claims per node")
    return found
