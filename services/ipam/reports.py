"""Reports of ipam: Events on Nodes, metrics of pools, and what sweeps found."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from libs.common.contract.networks import contains, parse_cached_network
from libs.common.kube.event_recorder import EventRecorder
from libs.common.kube.events import node_reference
from libs.common.observability import metrics
from services.ipam.core.allocation import AllocationPlan
from services.ipam.core.pages import Claim, Page
from services.ipam.core.pool_usage import measure_usage
from services.ipam.core.pools import NODE_SUBNET_POOL, Pool
from services.ipam.core.release_plan import InvalidPodCidr, SweepResult

log = logging.getLogger(__name__)

COMPONENT: Final = "talos-ccm-ipam"
NOT_AVAILABLE: Final = "CIDRNotAvailable"  # as the reference controller, like ASSIGNMENT_FAILED
ASSIGNMENT_FAILED: Final = "CIDRAssignmentFailed"
OTHER_ALLOCATOR: Final = "CIDRFromAnotherAllocator"
CONFLICT: Final = "CIDRConflict"
ADDRESSES_IGNORED: Final = "NodeAddressesIgnored"
METRICS_INTERVAL_SECONDS: Final = 10.0  # counting ten thousand claims takes 0.1 s
_MAX_REPORTED: Final = 20  # by name, per sweep; the others are only counted


@dataclass(eq=False)
class NodeEvents:
    """Records each Event once, until the message for that Node and reason changes."""

    recorder: EventRecorder
    get_cluster_wide_reasons: Callable[[], tuple[str, ...]]  # for /readyz: they become no Event

    def record(self, name: str, uid: str, reason: str, message: str) -> None:
        """Record a Warning, as "Node web-1 status is now: CIDRNotAvailable: ..." (reference controller)."""
        if message not in self.get_cluster_wide_reasons():
            text = f"Node {name} status is now: {reason}: {message}"
            self.recorder.record_once(node_reference(name, uid), reason, text, cause=message)

    def forget(self, uid: str) -> None:
        """Forget the messages about a Node that has blocks now, so that a new failure is recorded."""
        self.recorder.forget(uid, NOT_AVAILABLE, ASSIGNMENT_FAILED)


class PoolMetrics:
    """Counts claims and releases per pool, and the used share of each pool.

    All pools from the Nodes' own subnets share one series without a capacity: there may be one per Node.
    """

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}

    def add_pools(self, pools: Iterable[Pool]) -> None:
        """Add pools from which a Node may get a block."""
        self._pools.update({pool.cidr: pool for pool in pools if pool.name != NODE_SUBNET_POOL})

    def record_claimed(self, result: AllocationPlan) -> None:
        """Count the new blocks of a claim."""
        for block, pool in result.new_blocks:
            metrics.IPAM_ALLOCATIONS.labels(_series_name(pool)).inc()
            metrics.IPAM_TRIES.labels(_series_name(pool)).observe(result.tries[block])

    def record_freed(self, claims: Sequence[Claim]) -> None:
        """Count claims that ended."""
        for claim in claims:
            block = parse_cached_network(claim.block)
            of = (cidr for cidr in self._pools if contains(parse_cached_network(cidr), block))
            metrics.IPAM_RELEASES.labels(next(of, NODE_SUBNET_POOL)).inc()

    def refresh(self, pages: Iterable[Page]) -> None:
        """Set the gauges by the current pages."""
        found = measure_usage(self._pools.values(), pages)
        for cidr, use in found.pools.items():
            metrics.IPAM_MAX.labels(cidr).set(use.capacity)
            metrics.IPAM_USAGE.labels(cidr).set(use.used / use.capacity)
        metrics.IPAM_QUARANTINED.set(found.quarantined)

    def reset(self) -> None:
        """Remove the gauges of all pools after a configuration change; pools still in use come back."""
        for cidr in self._pools:
            metrics.IPAM_MAX.remove(cidr)
            metrics.IPAM_USAGE.remove(cidr)
        self._pools.clear()


def _series_name(pool: Pool) -> str:
    return NODE_SUBNET_POOL if pool.name == NODE_SUBNET_POOL else pool.cidr


@dataclass(eq=False)
class SweepReporter:
    """Reports each finding once."""

    node_events: NodeEvents
    pool_metrics: PoolMetrics

    def __post_init__(self) -> None:
        self._has_imported = False  # the podCIDRs of existing Nodes have been adopted
        self._reported_invalid: set[tuple[str, str]] = set()  # uid and podCIDR

    def report(self, collected: SweepResult) -> None:
        """Report one sweep."""
        self.pool_metrics.record_freed((*collected.freed, *collected.dropped))
        for outcome, claims in (("freed", collected.freed), ("dropped", collected.dropped)):
            if claims:
                log.info("blocks released", extra={"why": outcome, **_log_fields(claims)})
        for page_range, why in collected.postponed.items():
            log.info("page of claims postponed to the next sweep", extra={"page": page_range, "why": why})
        self._report_invalid(collected.invalid)
        # The first sweep finds podCIDRs from before ipam was installed, which are expected.
        foreign = collected.adopted if self._has_imported else collected.unexpected
        if foreign:
            self._report_foreign(foreign)
        foreign_blocks = {claim.block for claim in foreign}
        if imported := [claim for claim in collected.adopted if claim.block not in foreign_blocks]:
            log.info("existing pod CIDRs adopted", extra=_log_fields(imported))
        self._has_imported = self._has_imported or not collected.postponed

    def _report_foreign(self, claims: Sequence[Claim]) -> None:
        """Report podCIDRs that ipam did not claim; it cannot prevent them."""
        metrics.IPAM_FOREIGN.inc(len({claim.uid for claim in claims}))
        text = (
            "has {}, which ipam did not claim: another allocator runs, or ran while ipam did not "
            "(kube-controller-manager? it needs -node-ipam-controller in --controllers), or a page of claims "
            "was deleted"
        )
        log.warning(
            "pod CIDRs found that ipam did not claim: another allocator, or a deleted page of claims",
            extra=_log_fields(claims),
        )
        for claim in claims[:_MAX_REPORTED]:
            self.node_events.record(claim.node, claim.uid, OTHER_ALLOCATOR, f"it {text.format(claim.block)}")

    def _report_invalid(self, found: Sequence[InvalidPodCidr]) -> None:
        new = [invalid for invalid in found if (invalid.uid, invalid.cidr) not in self._reported_invalid]
        self._reported_invalid = {(invalid.uid, invalid.cidr) for invalid in found}
        metrics.IPAM_CONFLICTS.set(len(found))
        if not new:
            return
        shown = "; ".join(
            f"{invalid.node} {invalid.cidr}: {invalid.reason}" for invalid in new[:_MAX_REPORTED]
        )
        log.warning("invalid pod CIDRs found", extra={"count": len(new), "nodes": shown})
        for invalid in new[:_MAX_REPORTED]:
            self.node_events.record(
                invalid.node,
                invalid.uid,
                CONFLICT,
                f"its pod CIDR {invalid.cidr} is invalid: {invalid.reason}",
            )


def _log_fields(claims: Sequence[Claim]) -> dict[str, object]:
    shown = ", ".join(f"{claim.node} {claim.block}" for claim in claims[:_MAX_REPORTED])
    return {"count": len(claims), "nodes": shown}
