"""Claims blocks in Kubernetes, then writes them to Nodes, in an order that never assigns a block twice.

Once a page contains a claim of a block for a uid, patching that uid's Node with it is always correct, however
late. The claim ends only when the Node is gone or has other podCIDRs, and then the fence of the patch fails.
So this needs no lock and no Lease. It also need not know whether an error occurred before or after the write.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import msgspec

from libs.common.bus.delivery import TemporaryError
from libs.common.contract.node import Node
from libs.common.contract.node_patch import NodeChanges, build_node_patch
from libs.common.kube.errors import Conflict, KubeError
from services.ipam.absence_timer import AbsenceTimer
from services.ipam.allocation_plan import (
    AllocationPlan,
    AllocationRequest,
    AllocationResult,
    Assignment,
    Exclusions,
    NoBlock,
    plan_claims,
)
from services.ipam.garbage_collection import SweepResult, merge_plans
from services.ipam.page_cache import PageCache
from services.ipam.pages import PAGE_BYTES, Page, StoredPage, encode_page, page_name, page_range_of
from services.ipam.pool_selection import Pool
from services.ipam.release_plan import (
    PresentNode,
    ReleasePlan,
    find_invalid_pod_cidrs,
    list_page_ranges,
    plan_release,
)

_LIST_INTERVAL_SECONDS: Final = 10.0  # between two lists because of podCIDRs that are not observed
_MAX_ATTEMPTS: Final = 12  # attempts per call; each failed one means that another replica's write succeeded


class ClaimsApi(Protocol):
    """The requests of ipam to Kubernetes. After a KubeError, a write may still have happened."""

    async def list_pages(self) -> Sequence[StoredPage]:
        """List all pages, with a quorum read."""

    async def read_page(self, name: str) -> StoredPage | None:
        """Read that page with a quorum read; None if it does not exist."""

    async def write_page(self, page: StoredPage) -> str:
        """Replace the page at its resourceVersion, or create it; return the new resourceVersion.

        Raises Conflict if the version differs or the page already exists, NotFound if the page was deleted.
        """

    async def patch_node(self, name: str, json_patch: Sequence[dict[str, Any]], /) -> Node:
        """Patch a Node, as KubeApi does. FenceFailed: its uid differs, or it has podCIDRs."""

    async def list_nodes(self) -> Sequence[Node]:
        """List all Nodes at one moment after the start of the call, with a quorum read."""


class ClaimResult(msgspec.Struct, frozen=True, kw_only=True):
    """Results by uid, none if the claim yielded to another replica; new blocks, each with its pool."""

    results: Mapping[str, AllocationResult]
    new_blocks: tuple[tuple[str, Pool], ...] = ()
    attempts: Mapping[str, int] = {}  # by new block, number of candidate blocks examined
    ignored_addresses: Mapping[str, str] = {}  # by Node, which of its many addresses are ignored, in words
    is_contended: bool = False  # a write of this call failed because another replica had written that page


@dataclass(eq=False)
class Allocator:
    """The claims as last read, and the operations on them. Calls may overlap: writes compare and swap."""

    api: ClaimsApi
    _: KW_ONLY
    now: Callable[[], datetime]  # for readers of the claims
    clock: Callable[[], float]  # monotonic, in seconds
    quarantine: timedelta = timedelta(minutes=10)
    page_bytes: int = PAGE_BYTES
    # Another controller manages the Node; its podCIDRs are excluded and never adopted.
    is_foreign: Callable[[Node], bool] = lambda node: False

    def __post_init__(self) -> None:
        self.pages = PageCache()
        self.absences = AbsenceTimer(self.quarantine.total_seconds())
        # uid -> podCIDRs, from the last list
        self._pod_cidrs_by_uid: Mapping[str, tuple[str, ...]] | None = None
        self._node_names_by_uid: Mapping[str, str] = {}  # for messages
        self._listed_at = self.clock()  # start of the last list
        self._resets = 0  # number of resets: a list of Nodes that began before the last one does not count
        self._cursors: dict[tuple[str, int], str] = {}
        self._in_flight: Counter[str] = Counter()  # by range, unanswered writes

    def reset(self) -> None:
        """Read all Nodes and pages again before the next claim, after a new stream or a lost page."""
        self._pod_cidrs_by_uid = None
        self._resets += 1

    async def claim(
        self,
        requests: Sequence[AllocationRequest],
        get_exclusions: Callable[[], Exclusions],
        *,
        never_yield: bool = True,
    ) -> ClaimResult:
        """Claim for many Nodes with one write per page; the results are valid permanently.

        Reads all Nodes and pages before the first claim, and the pages again before it reports exhaustion.
        etcd may be restored from a backup. So it also reads a page again before it reports an existing claim,
        and lists all again if only a list older than 10 s reports podCIDRs of a Node.
        Calls `get_exclusions` before each plan, so new exclusions count. If another replica wrote a page
        first, it plans again, or returns no results unless `never_yield`. Raises the errors of
        `get_exclusions`, KubeError, and TemporaryError if other replicas won every attempt.
        """
        closed: dict[str, str] = {}
        current: set[str] = set()  # the ranges of the pages that this call has written or read
        new_blocks: list[tuple[str, Pool]] = []
        tries: dict[str, int] = {}
        reread = is_contended = False
        for _ in range(_MAX_ATTEMPTS):
            if self._pod_cidrs_by_uid is None:
                await self._list_cluster()
                reread = True
                if self._pod_cidrs_by_uid is None:  # reset while the Nodes were listed
                    continue
            exclusions = get_exclusions()
            if not reread and self._has_unobserved_pod_cidrs(requests, exclusions):
                self.reset()
                continue
            plan = self._plan(requests, exclusions, closed)
            if not reread and _needs_current_pages(plan, current):
                self._replace_pages(await self.api.list_pages())
                reread = True
                continue
            tries.update(plan.attempts)
            written, overtaken = await self._write_all(plan, closed, current)
            is_contended = is_contended or overtaken
            new_blocks += [
                (block, pool) for block, pool in plan.new_blocks if page_range_of(block) in written
            ]
            if overtaken and not never_yield:
                return ClaimResult(
                    results={}, new_blocks=tuple(new_blocks), attempts=tries, is_contended=True
                )
            if len(written) == len(plan.changed_pages):
                return ClaimResult(
                    results=plan.results,
                    new_blocks=tuple(new_blocks),
                    attempts=tries,
                    ignored_addresses=plan.ignored_addresses,
                    is_contended=is_contended,
                )
            if overtaken and len(plan.changed_pages) - len(written) > 1:
                await self.refresh_pages()  # the replica that wrote one of them probably wrote the others
                reread = True
        raise TemporaryError("other replicas wrote every page of claims first")

    async def refresh_pages(self) -> bool:
        """Read all pages again; return whether other replicas have written since. Raises KubeError."""
        before = self.pages.resource_versions()
        self._replace_pages(await self.api.list_pages())
        now = self.pages.resource_versions()
        return any(before.get(page) != now[page] and not self._is_own_write(page) for page in now)

    async def assign(self, node: Node, assignment: Assignment, fenced_labels: tuple[str, ...] = ()) -> Node:
        """Write the claimed blocks to that very Node; return the patched Node.

        Raises KubeError. FenceFailed and NotFound mean that the Node has podCIDRs, is deleted or replaced, or
        that one of `fenced_labels` has changed.
        """
        if node.uid != assignment.uid:
            raise ValueError(f"{assignment.pod_cidrs} are claimed for {assignment.uid}, not for {node.uid}")
        operations = build_node_patch(
            node, NodeChanges(pod_cidrs=assignment.pod_cidrs, guarded_labels=fenced_labels)
        )
        return await self.api.patch_node(node.name, operations) if operations else node

    async def sweep(self) -> SweepResult:
        """End claims that are due, and adopt podCIDRs of Nodes without a claim. Raises KubeError."""
        snapshot = await self._list_cluster()
        absent = {
            (block, claim.uid)
            for page in snapshot.pages
            for block, claim in page.claims.items()
            if claim.uid not in snapshot.present
        }
        rested = self.absences.observe(absent, list_began=snapshot.began, list_ended=snapshot.ended)
        completed: list[ReleasePlan] = []
        postponed: list[tuple[str, str]] = []
        for page in snapshot.pages:
            released = plan_release(
                page,
                snapshot.present,
                rested=rested,
                now=self.now(),
                page_bytes=self.page_bytes,
            )
            error = None if released.page is page else await self._write(released.page)
            if error is None:
                completed.append(released)
            else:
                postponed.append((page.range, str(error)))
        return merge_plans(completed, find_invalid_pod_cidrs(snapshot.present), postponed)

    async def _list_cluster(self) -> "_ClusterSnapshot":
        """List pages, then Nodes: the Nodes of all claims in these pages existed before the list of Nodes."""
        self._replace_pages(await self.api.list_pages())
        pages = dict(self.pages.by_range)
        closed = self.pages.closed_pages()
        forgotten = self._resets
        began = self.clock()
        nodes = await self.api.list_nodes()
        ended = self.clock()
        present = {node.uid: self._make_present_node(node) for node in nodes}
        if forgotten == self._resets:
            self._listed_at = began
            self._pod_cidrs_by_uid = {node.uid: node.spec.pod_cidrs for node in nodes if node.spec.pod_cidrs}
            self._node_names_by_uid = {uid: node.name for uid, node in present.items()}
        ranges = {*pages, *(found for found in list_page_ranges(present) if page_name(found) not in closed)}
        return _ClusterSnapshot(
            pages=tuple(pages.get(found) or Page(range=found) for found in sorted(ranges)),
            present=present,
            began=began,
            ended=ended,
        )

    def _make_present_node(self, node: Node) -> PresentNode:
        is_foreign = self.is_foreign(node)
        return PresentNode(node.name, node.spec.pod_cidrs, node.metadata.creation_timestamp, is_foreign)

    # ---- pages, as last read or written

    def _has_unobserved_pod_cidrs(
        self, requests: Sequence[AllocationRequest], exclusions: Exclusions
    ) -> bool:
        """Whether an older list reports podCIDRs of a requesting Node that is observed without any.

        Usually the watcher is late: another replica wrote them. So a recent list counts.
        """
        if self.clock() - self._listed_at < _LIST_INTERVAL_SECONDS:
            return False
        listed, observed = self._pod_cidrs_by_uid or {}, exclusions.pod_cidrs_by_uid
        return any(request.uid in listed and request.uid not in observed for request in requests)

    def _plan(
        self, requests: Sequence[AllocationRequest], exclusions: Exclusions, closed_pages: Mapping[str, str]
    ) -> AllocationPlan:
        carried = {
            **exclusions.pod_cidrs_by_uid,
            **(self._pod_cidrs_by_uid or {}),
        }  # a Node that was listed with podCIDRs keeps them
        return plan_claims(
            self.pages.by_range,
            requests,
            msgspec.structs.replace(
                exclusions,
                pod_cidrs_by_uid=carried,
                node_names_by_uid={**self._node_names_by_uid, **exclusions.node_names_by_uid},
            ),
            closed_pages={**closed_pages, **self.pages.closed_pages()},
            cursors=self._cursors,
            page_bytes=self.page_bytes,
        )

    async def _write_all(
        self, plan: AllocationPlan, closed_pages: dict[str, str], current: set[str]
    ) -> tuple[set[str], bool]:
        """Return the written ranges, and whether another replica wrote a page first.

        Adds pages that accept no write now to `closed_pages`, and the range of each page that it wrote or
        read to `current`.
        """
        written = set()
        overtaken = False
        for page in plan.changed_pages:
            error = await self._write(page)
            current.add(page.range)
            if error is None:
                written.add(page.range)
                continue
            overtaken = overtaken or (isinstance(error, Conflict) and not self._is_own_write(page.range))
            if self.pages.is_current(page):
                closed_pages[page_name(page.range)] = f"{page_name(page.range)} was not written: {error}"
            elif overtaken:  # the replica that wrote this page first will write the next one too
                break
        if len(written) == len(plan.changed_pages):
            self._cursors = dict(plan.cursors)
        return written, overtaken

    async def _write(self, page: Page) -> KubeError | None:
        """Write a page; None on success. After an error, read the page: the write may have happened."""
        stored = encode_page(page)
        self._in_flight[page.range] += 1
        try:
            version = await self.api.write_page(stored)
        except KubeError as error:
            read = await self.api.read_page(stored.name)
            if not self.pages.replace(page, read):
                self.reset()  # the claims that protected blocks are lost
            return error
        finally:
            self._in_flight[page.range] -= 1
        self.pages.record_write(page, version)
        return None

    def _is_own_write(self, page_range: str) -> bool:
        """Whether this process wrote the page; conflicts of its own sweeps and claims do not count."""
        return self.pages.is_own_write(page_range) or self._in_flight[page_range] > 0

    def _replace_pages(self, stored: Sequence[StoredPage]) -> None:
        if not self.pages.replace_all(stored):
            self.reset()


def _needs_current_pages(plan: AllocationPlan, current: set[str]) -> bool:
    """Whether a result rests on a page that this plan does not write: exhaustion, or an existing claim."""
    if plan.has_yielded:
        return True
    current = current | {page.range for page in plan.changed_pages}
    for result in plan.results.values():
        if isinstance(result, NoBlock):
            return True
        if isinstance(result, Assignment) and not current.issuperset(map(page_range_of, result.pod_cidrs)):
            return True
    return False


class _ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    pages: tuple[Page, ...]  # as read before the list of Nodes began
    present: Mapping[str, PresentNode]
    began: float
    ended: float
