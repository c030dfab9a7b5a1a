"""Claims blocks in Kubernetes, then writes them to Nodes, in an order that never assigns a block twice.

Once a page contains a claim of a block for a uid, patching that uid's Node with it is always correct, however
late. The claim ends only when the Node is gone or has other podCIDRs, and then the fence of the patch fails.
So this needs no leader. It also need not know whether an error occurred before or after the write.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.common.bus.delivery import TemporaryError
from libs.common.contract.node import Node
from libs.common.contract.node_patch import NodeChanges, build_node_patch
from libs.common.contract.services import CLAIM_PAGES_NAMESPACE
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Conflict, KubeError, NotFound
from services.ipam.core.allocation import (
    AllocationPlan,
    AllocationRequest,
    Assignment,
    plan_claims,
)
from services.ipam.core.ledger import Cursors, Exclusions
from services.ipam.core.pages import (
    PAGE_BYTES,
    Page,
    Pages,
    decode_pages,
    encode_page,
    is_page,
    page_name,
    page_range_of,
)
from services.ipam.core.pools import Pool
from services.ipam.core.release_plan import AbsenceTimer, PresentNode, SweepResult, plan_sweep

_LIST_INTERVAL_SECONDS: Final = 10.0  # between two lists because of podCIDRs that are not observed
_MAX_CONCURRENT_PATCHES: Final = 16  # the labeler needs connections too if it runs in the same process
_MAX_ATTEMPTS: Final = 8  # each failed one means that another replica wrote a page between a read and a write


class _NodeList(msgspec.Struct, frozen=True):
    began: float
    by_uid: Mapping[str, PresentNode]


@dataclass(eq=False)
class Allocator:
    """Reads all pages before each plan and writes the changed ones, one operation at a time.

    It reads by quorum. After a KubeError, a write may still have happened.
    """

    kube: KubeApi
    _: KW_ONLY
    now: Callable[[], datetime]  # for readers of the claims
    clock: Callable[[], float]  # monotonic, in seconds
    quarantine: timedelta = timedelta(minutes=10)
    page_bytes: int = PAGE_BYTES
    # Another controller manages the Node; its podCIDRs are excluded and never adopted.
    is_foreign: Callable[[Node], bool] = lambda node: False

    def __post_init__(self) -> None:
        self.pages = Pages()  # as last read or written, for reports
        self.pages_read_at: datetime | None = None
        self.absences = AbsenceTimer(self.quarantine.total_seconds())
        self._node_list: _NodeList | None = None  # None: list the Nodes before the next claim
        self._refused: set[str] = set()  # ranges of pages whose last write by a sweep failed
        self._cursors: Cursors = {}
        self._write_slots = asyncio.Semaphore(_MAX_CONCURRENT_PATCHES)
        # A list of Nodes judges the claims of the pages that were read before it. No claim may come between.
        self._lock = asyncio.Lock()

    async def claim(
        self, requests: Sequence[AllocationRequest], get_exclusions: Callable[[], Exclusions]
    ) -> AllocationPlan:
        """Claim for many Nodes with one write per page; the results are valid permanently.

        Each plan follows a read of all pages, so claims of other replicas and a restored etcd count, and a
        call of `get_exclusions`. After a failed write everything is planned again: another replica may have
        written the page, or the write may have happened. Raises the errors of `get_exclusions`, KubeError,
        and TemporaryError if other replicas won every attempt.
        """
        new_blocks: list[tuple[str, Pool]] = []
        tries: dict[str, int] = {}
        closed: dict[str, str] = {}  # names of the pages that accept no write now, with the error
        async with self._lock:
            for _ in range(_MAX_ATTEMPTS):
                await self._read_pages()
                if self._must_list_nodes(requests):
                    await self._list_nodes()
                plan = self._plan(requests, get_exclusions(), closed)
                written, error = await self._write_all(plan.changed_pages)
                new_blocks += [new for new in plan.new_blocks if page_range_of(new[0]) in written]
                tries |= plan.tries
                if error is None:
                    self._cursors = plan.cursors
                    return plan.complete(new_blocks, tries)
                if not isinstance(error, Conflict | NotFound):
                    name = page_name(plan.changed_pages[len(written)].range)
                    closed[name] = f"{name} was not written: {error}"
        raise TemporaryError("other replicas wrote every page of claims first")

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
        async with self._write_slots:
            return await self.kube.patch_node(node.name, operations)

    async def sweep(self) -> SweepResult:
        """End claims that are due, and adopt podCIDRs of Nodes without a claim. Raises KubeError."""
        async with self._lock:
            await self._read_pages()
            began = self.clock()
            present = await self._list_nodes()
            rested = self.absences.observe(
                self.pages.find_absent(present), list_began=began, list_ended=self.clock()
            )
            plans, invalid = plan_sweep(
                self.pages, present, rested=rested, now=self.now(), page_bytes=self.page_bytes
            )
            plans.sort(
                key=lambda plan: plan.page.range in self._refused
            )  # such a page must not stop the others
            changing = [plan for plan in plans if plan.changes_page]
            written, error = await self._write_all([plan.page for plan in changing])
            self._refused -= set(written)
            postponed = [plan.page.range for plan in changing[len(written) :]]
            self._refused.update(postponed[:1])
        result = SweepResult(invalid=invalid, postponed=dict.fromkeys(postponed, str(error)))
        for plan in plans:
            is_done = plan.page.range not in result.postponed
            result += plan.result if is_done else SweepResult(invalid=plan.result.invalid)
        return result

    async def _list_nodes(self) -> Mapping[str, PresentNode]:
        """List all Nodes, for this plan and later ones; return them by uid."""
        began = self.clock()
        nodes = [node async for page in self.kube.list_nodes() for node in page.items]
        present = {node.uid: self._make_present_node(node) for node in nodes}
        self._node_list = _NodeList(began, present)
        return present

    def _make_present_node(self, node: Node) -> PresentNode:
        is_foreign = self.is_foreign(node)
        return PresentNode(node.name, node.spec.pod_cidrs, node.metadata.creation_timestamp, is_foreign)

    def _must_list_nodes(self, requests: Sequence[AllocationRequest]) -> bool:
        """Whether there is no valid list, or an old one reports podCIDRs of a Node observed without any.

        Usually the watcher is late: another replica wrote them. So a recent list counts. Otherwise etcd may
        have been restored from a backup.
        """
        if self._node_list is None:
            return True
        is_old = self.clock() - self._node_list.began >= _LIST_INTERVAL_SECONDS
        found = (self._node_list.by_uid.get(request.uid) for request in requests)
        return is_old and any(node is not None and node.pod_cidrs for node in found)

    def _plan(
        self, requests: Sequence[AllocationRequest], exclusions: Exclusions, closed_pages: Mapping[str, str]
    ) -> AllocationPlan:
        assert self._node_list is not None, "the Nodes are listed before each plan"
        listed = self._node_list.by_uid
        with_pod_cidrs = {uid: node.pod_cidrs for uid, node in listed.items() if node.pod_cidrs}
        names = {uid: node.name for uid, node in listed.items()}
        return plan_claims(
            self.pages.by_range,
            requests,
            msgspec.structs.replace(
                exclusions,
                pod_cidrs_by_uid=_combine(exclusions.pod_cidrs_by_uid, with_pod_cidrs),
                node_names_by_uid={**names, **exclusions.node_names_by_uid},
            ),
            closed_pages={**closed_pages, **self.pages.explain_closed()},
            cursors=self._cursors,
            page_bytes=self.page_bytes,
        )

    async def _read_pages(self) -> None:
        """Read all pages. The claims of a deleted one protect no block: the Nodes must be listed again."""
        read_at = self.now()
        listed = self.kube.list_config_maps(CLAIM_PAGES_NAMESPACE, {})
        stored = [found async for page in listed for found in page.items if is_page(found)]
        pages = decode_pages(stored, self.pages)
        if not self.pages.names <= pages.names:
            self._node_list = None
        self.pages, self.pages_read_at = pages, read_at

    async def _write_all(self, pages: Sequence[Page]) -> tuple[list[str], KubeError | None]:
        """Write pages up to the first error; return the ranges of the written ones and the error.

        An error means that the pages must be read again, whether or not the write happened. If etcd was
        restored, the resourceVersion of the next page may exist again, with another content.
        """
        written: list[str] = []
        for page in pages:
            write = self.kube.update_config_map if page.resource_version else self.kube.create_config_map
            try:
                stored = await write(CLAIM_PAGES_NAMESPACE, encode_page(page))
            except KubeError as error:
                return written, error
            self.pages = self.pages.replace(page, stored)
            written.append(page.range)
        return written, None


def _combine(
    observed: Mapping[str, tuple[str, ...]], listed: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Return the podCIDRs of all Nodes by uid; a Node that was listed with some keeps them.

    If both differ, etcd was restored between them. Either may be the older one, so both count.
    """
    combined = {**observed, **listed}
    for uid, pod_cidrs in listed.items():
        seen = observed.get(uid, pod_cidrs)
        if seen != pod_cidrs:
            combined[uid] = (*seen, *pod_cidrs)
    return combined
