"""Claims in Kubernetes, then on the Node: the order of reads and writes under which no block is given twice.

Once a page has held a claim of a block for a uid, patching that uid's Node with it is right for ever after,
however late: the claim ends only when the Node is gone or carries other podCIDRs, and then the patch fails at
its fences. So nothing here needs a lock, a lease, or to know whether an error came after the write.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import msgspec

from libs.common.bus.delivery import TemporaryError
from libs.common.contract.node import Node
from libs.common.contract.node_patch import NodeChanges, build_node_patch
from libs.common.kube.errors import Conflict, KubeError
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

_MAX_ATTEMPTS: Final = 12  # plans of one call; in each somebody's write went through, so others made progress


class ClaimsApi(Protocol):
    """What ipam does in Kubernetes. Each raises KubeError; that one does not say that nothing was written."""

    async def list_pages(self) -> Sequence[StoredPage]:
        """All pages there are, from etcd."""

    async def read_page(self, name: str) -> StoredPage | None:
        """That page from etcd, None if it is not there."""

    async def write_page(self, page: StoredPage) -> str:
        """Put it in the place of the version that it names, or create it; the new resourceVersion.

        Conflict: it is another version now, or there is one. NotFound: it is not there any more.
        """

    async def patch_node(self, name: str, json_patch: Sequence[dict[str, Any]], /) -> Node:
        """As KubeApi does. FenceFailed: another uid, or it has podCIDRs."""

    async def list_nodes(self) -> Sequence[Node]:
        """All Nodes of one moment that is not before the call, from etcd."""


class ClaimResult(msgspec.Struct, frozen=True, kw_only=True):
    """Answers by uid, none if somebody else was quicker; blocks that were claimed now, each with its pool."""

    results: Mapping[str, AllocationResult]
    new_blocks: tuple[tuple[str, Pool], ...] = ()
    attempts: Mapping[str, int] = {}  # by new block, how many were looked at for it
    ignored_addresses: Mapping[str, str] = {}  # by Node, which of its many addresses do not count, in words
    is_contended: bool = False  # a write of this call came too late: another replica had written that page


class Allocator:
    """The claims as last read, and what is done with them. Calls may overlap: writes compare and swap."""

    def __init__(
        self,
        api: ClaimsApi,
        *,
        now: Callable[[], datetime],
        quarantine: timedelta = timedelta(minutes=10),
        page_bytes: int = PAGE_BYTES,
        is_foreign: Callable[[Node], bool] = lambda node: False,
    ) -> None:
        """`is_foreign`: a Node is another's: what it carries is given to nobody, and no claim made of it."""
        self._api = api
        self._now = now
        self._quarantine = quarantine
        self._page_bytes = page_bytes
        self._is_foreign = is_foreign
        self.pages = PageCache()
        self._pod_cidrs_by_uid: Mapping[str, tuple[str, ...]] | None = None  # podCIDRs by uid, as last listed
        self._node_names_by_uid: Mapping[str, str] = {}  # of those, for people
        self._resets = 0  # how often: a list of Nodes that began before does not count
        self._cursors: dict[tuple[str, int], str] = {}
        self._in_flight: Counter[str] = Counter()  # by range, writes whose answer is not known yet

    def reset(self) -> None:
        """Before the next claim all Nodes and pages are read again: for another stream, or a lost page."""
        self._pod_cidrs_by_uid = None
        self._resets += 1

    async def claim(
        self,
        requests: Sequence[AllocationRequest],
        get_exclusions: Callable[[], Exclusions],
        *,
        never_yield: bool = True,
    ) -> ClaimResult:
        """Claim for many Nodes, a write per page; the answers hold from then on.

        Reads all Nodes and pages before the first claim, and the pages again before it says that there is no
        room. `occupied` is asked before each plan: what was learnt since the last one counts. Where others
        are quicker it begins anew; or, unless it is to `insist`, answers nobody. Raises what `occupied`
        raises, KubeError, and TemporaryError where others were quicker all the time.
        """
        closed: dict[str, str] = {}
        new: list[tuple[str, Pool]] = []
        tries: dict[str, int] = {}
        reread = contended = False
        for _ in range(_MAX_ATTEMPTS):
            if self._pod_cidrs_by_uid is None:
                await self._list_cluster()
                reread = True
                if self._pod_cidrs_by_uid is None:  # forgotten while the Nodes were listed
                    continue
            plan = self._plan(requests, get_exclusions(), closed)
            if plan.changed_pages:
                tries.update(plan.attempts)
                written, overtaken = await self._write_all(plan, closed)
                contended = contended or overtaken
                new += [(block, pool) for block, pool in plan.new_blocks if page_range_of(block) in written]
                if overtaken and not never_yield:
                    return ClaimResult(results={}, new_blocks=tuple(new), attempts=tries, is_contended=True)
                if overtaken and len(plan.changed_pages) - len(written) > 1:
                    await self.refresh_pages()  # whoever wrote one of them most likely wrote the others
                if len(written) < len(plan.changed_pages):
                    continue
            if reread or not any(isinstance(answer, NoBlock) for answer in plan.results.values()):
                return ClaimResult(
                    results=plan.results,
                    new_blocks=tuple(new),
                    attempts=tries,
                    ignored_addresses=plan.ignored_addresses,
                    is_contended=contended,
                )
            self._replace_pages(await self._api.list_pages())
            reread = True
        raise TemporaryError("other replicas were quicker with every page of claims")

    async def refresh_pages(self) -> bool:
        """Read all pages anew; whether others have written since. Raises KubeError."""
        before = self.pages.resource_versions()
        self._replace_pages(await self._api.list_pages())
        now = self.pages.resource_versions()
        return any(before.get(page) != now[page] and not self._is_own_write(page) for page in now)

    async def assign(self, node: Node, assignment: Assignment, fenced_labels: tuple[str, ...] = ()) -> Node:
        """Write what was claimed for this very Node; the Node after it.

        Raises KubeError: FenceFailed and NotFound mean that it has podCIDRs, is gone or another Node now, or
        that one of `held_labels` has changed.
        """
        if node.uid != assignment.uid:
            raise ValueError(f"{assignment.pod_cidrs} are claimed for {assignment.uid}, not for {node.uid}")
        operations = build_node_patch(
            node, NodeChanges(pod_cidrs=assignment.pod_cidrs, guarded_labels=fenced_labels)
        )
        return await self._api.patch_node(node.name, operations) if operations else node

    async def sweep(self) -> SweepResult:
        """End claims that are due, and take over what Nodes carry without one. Raises KubeError."""
        look = await self._list_cluster()
        done: list[ReleasePlan] = []
        postponed: list[tuple[str, str]] = []
        for page in look.pages:
            released = plan_release(
                page,
                look.present,
                list_began=look.began,
                list_ended=look.ended,
                quarantine=self._quarantine,
                page_bytes=self._page_bytes,
            )
            error = None if released.page is page else await self._write(released.page)
            if error is None:
                done.append(released)
            else:
                postponed.append((page.range, str(error)))
        return merge_plans(done, find_invalid_pod_cidrs(look.present), postponed)

    async def _list_cluster(self) -> "_ClusterSnapshot":
        """Pages first, then Nodes: what a page holds was claimed for Nodes that existed before the list."""
        self._replace_pages(await self._api.list_pages())
        pages = dict(self.pages.by_range)
        closed = self.pages.closed_pages()
        forgotten = self._resets
        began = self._now()
        nodes = await self._api.list_nodes()
        ended = self._now()
        present = {node.uid: self._make_present_node(node) for node in nodes}
        if forgotten == self._resets:
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
        is_foreign = self._is_foreign(node)
        return PresentNode(node.name, node.spec.pod_cidrs, node.metadata.creation_timestamp, is_foreign)

    # ---- pages, as they were last read or written

    def _plan(
        self, requests: Sequence[AllocationRequest], exclusions: Exclusions, closed_pages: Mapping[str, str]
    ) -> AllocationPlan:
        carried = {
            **exclusions.pod_cidrs_by_uid,
            **(self._pod_cidrs_by_uid or {}),
        }  # who was listed with podCIDRs keeps them
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
            page_bytes=self._page_bytes,
        )

    async def _write_all(self, plan: AllocationPlan, closed_pages: dict[str, str]) -> tuple[set[str], bool]:
        """The ranges that were written, and whether another replica's write came before one of ours.

        Pages that take no writes now are added to `closed`.
        """
        written = set()
        overtaken = False
        for page in plan.changed_pages:
            error = await self._write(page)
            if error is None:
                written.add(page.range)
                continue
            overtaken = overtaken or (isinstance(error, Conflict) and not self._is_own_write(page.range))
            if self.pages.is_current(page):
                closed_pages[page_name(page.range)] = f"{page_name(page.range)} was not written: {error}"
            elif overtaken:  # who was quicker with this page is about to write the next one
                break
        if len(written) == len(plan.changed_pages):
            self._cursors = dict(plan.cursors)
        return written, overtaken

    async def _write(self, page: Page) -> KubeError | None:
        """None once it is known to be written; after any error the page is read: it may be all the same."""
        stored = encode_page(page)
        self._in_flight[page.range] += 1
        try:
            version = await self._api.write_page(stored)
        except KubeError as error:
            read = await self._api.read_page(stored.name)
            if not self.pages.replace(page, read):
                self.reset()  # what protected blocks is lost
            return error
        finally:
            self._in_flight[page.range] -= 1
        self.pages.record_write(page, version)
        return None

    def _is_own_write(self, page_range: str) -> bool:
        """A sweep and a claim of one process overtake each other, too: that is no reason to give way."""
        return self.pages.is_own_write(page_range) or self._in_flight[page_range] > 0

    def _replace_pages(self, stored: Sequence[StoredPage]) -> None:
        if not self.pages.replace_all(stored):
            self.reset()


class _ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    pages: tuple[Page, ...]  # as they were before the list of Nodes began
    present: Mapping[str, PresentNode]
    began: datetime
    ended: datetime
