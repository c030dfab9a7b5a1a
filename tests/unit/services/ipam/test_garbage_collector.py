"""How often claims and Nodes are compared, and that no content of a page ends the comparison."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from libs.common.contract.node import Node, NodeSpec, ObjectMeta
from libs.common.contract.services import CLAIM_PAGES_NAMESPACE
from libs.common.kube.errors import Forbidden, KubeError
from libs.common.kube.event_recorder import EventRecorder
from libs.common.observability import metrics
from services.ipam.allocator import Allocator
from services.ipam.core.pages import Claim, Page, encode_page
from services.ipam.garbage_collector import GarbageCollector
from services.ipam.reports import OTHER_ALLOCATOR, NodeEvents, PoolMetrics, SweepReporter
from tests.builders import NOW
from tests.clocks import ManualClock
from tests.ipam_actors import InMemoryCluster

QUARANTINE = timedelta(minutes=10)
RESYNC_SECONDS = 300.0
ONE, OTHER = "10.240.0.0/12", "192.160.0.0/12"  # pages


class Watching:
    """One replica's look at an API server's claims and Nodes, as time goes by."""

    def __init__(self) -> None:
        self.kube = InMemoryCluster()
        self.clock = ManualClock(NOW)
        self.kube.now = self.clock.now
        self.events = EventRecorder(self.kube, component="", now=self.clock.now)
        kube: Any = self.kube
        self.allocator = Allocator(
            kube,
            now=self.clock.now,
            clock=self.clock,
            quarantine=QUARANTINE,
        )
        self.watch = GarbageCollector(
            self.allocator,
            resync_seconds=RESYNC_SECONDS,
            get_pause_reason=str,
            report=SweepReporter(NodeEvents(self.events, tuple), PoolMetrics()).report,
            on_blocks_freed=lambda: None,
            clock=self.clock,
            random=random.Random(1),
        )

    async def holds(self, page_range: str, *claims: Claim) -> None:
        page = Page(range=page_range, claims={claim.block: claim for claim in claims})
        await self.kube.create_config_map(CLAIM_PAGES_NAMESPACE, encode_page(page))

    async def joins(self, name: str, pod_cidr: str, *, after: timedelta) -> None:
        """It carries that, and so long after now it was made."""
        created = self.clock.now() + after
        metadata = ObjectMeta(name=name, uid=f"uid of {name}", creation_timestamp=created)
        self.kube.put_node(Node(metadata=metadata, spec=NodeSpec(pod_cidrs=(pod_cidr,))))

    async def passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1.0)
            if self.clock() >= self.watch._next_sweep_at:
                await self.watch._sweep()

    async def reported(self) -> list[tuple[str, str]]:
        """The Events so far: Node and reason."""
        await self.events.flush()
        return [(event.regarding.name, event.reason) for event in self.kube.events]

    def blocks(self) -> set[str]:
        return {block for page in self.allocator.pages.by_range.values() for block in page.claims}


@pytest.fixture
def watching() -> Watching:
    return Watching()


def gone(block: str, since: datetime | None) -> Claim:
    return Claim(block=block, uid=f"uid of {block}", node="web-1", gone_since=since)


async def test_a_page_that_never_takes_a_write_does_not_make_all_nodes_be_listed_every_second(watching):
    def refused(verb: str, name: str) -> KubeError | None:
        return Forbidden("not yours", status=403) if verb == "update" and "10.240" in name else None

    await watching.holds(ONE, gone("10.244.0.0/24", None))
    await watching.holds(OTHER, gone("192.168.0.0/24", None))
    watching.kube.fails_before = refused
    await watching.passes(590)
    assert watching.blocks() == {"10.244.0.0/24", "192.168.0.0/24"}
    await watching.passes(65)
    assert watching.blocks() == {"10.244.0.0/24"}  # rested, in a page that can be written
    await watching.passes(295)
    assert watching.kube.lists["nodes"] <= 40
    watching.kube.fails_before = lambda verb, name: None
    await watching.passes(65)
    assert watching.blocks() == set()


@pytest.mark.parametrize(
    "since", [None, NOW - timedelta(days=1), NOW + timedelta(hours=1), datetime.max.replace(tzinfo=UTC)]
)
async def test_a_block_rests_a_quarantine_after_a_restart_whatever_time_its_claim_has(watching, since):
    await watching.holds(ONE, gone("10.244.0.0/24", since))
    await watching.passes(590)
    assert watching.blocks() == {"10.244.0.0/24"}
    await watching.passes(20)
    assert watching.blocks() == set()


async def test_the_first_look_takes_over_what_was_there_before_the_page_and_tells_what_was_given_since(
    watching,
):
    await watching.holds(ONE)
    await watching.joins("old", "10.244.1.0/24", after=-timedelta(days=30))
    await watching.joins("as-old", "10.244.2.0/24", after=timedelta(0))
    await watching.joins("since", "10.244.3.0/24", after=timedelta(hours=1))
    before = metrics.IPAM_FOREIGN._value.get()
    await watching.passes(1)
    assert watching.blocks() == {"10.244.1.0/24", "10.244.2.0/24", "10.244.3.0/24"}
    assert await watching.reported() == [("since", OTHER_ALLOCATOR)]
    assert metrics.IPAM_FOREIGN._value.get() == before + 1


async def test_pod_cidrs_that_appear_after_the_first_look_are_reported_however_old_the_node_is(watching):
    await watching.holds(ONE)
    await watching.passes(1)
    await watching.joins("old", "10.244.1.0/24", after=-timedelta(days=30))
    await watching.passes(310)
    assert await watching.reported() == [("old", OTHER_ALLOCATOR)]


async def test_a_claim_that_cannot_be_written_anew_is_looked_at_as_it_stands(watching):
    """A day that never comes, in a page that takes no writes: the others go on."""
    await watching.holds(ONE, gone("10.244.0.0/24", datetime.max.replace(tzinfo=UTC)))
    watching.kube.fails_before = lambda verb, name: Forbidden(name, status=403) if verb == "update" else None
    metadata = ObjectMeta(name="web-2", uid="uid-2")
    watching.kube.put_node(Node(metadata=metadata, spec=NodeSpec(pod_cidrs=("192.168.3.0/24",))))
    await watching.passes(400)
    assert watching.blocks() == {"10.244.0.0/24", "192.168.3.0/24"}


async def test_an_odd_pod_cidr_is_reported_once_though_its_page_was_not_written_in_between(watching, caplog):
    await watching.holds(ONE, Claim(block="10.244.0.0/24", uid="uid-1", node="web-1"))
    metadata = ObjectMeta(name="web-1", uid="uid-1")
    watching.kube.put_node(Node(metadata=metadata))
    odd = ObjectMeta(name="web-2", uid="uid-2")
    watching.kube.put_node(Node(metadata=odd, spec=NodeSpec(pod_cidrs=("10.244.0.0/24",))))
    await watching.passes(1)
    assert metrics.IPAM_CONFLICTS._value.get() == 1
    watching.kube.nodes.pop("web-1")
    watching.kube.fails_before = lambda verb, name: Forbidden(name, status=403) if verb == "update" else None
    await watching.passes(400)
    assert metrics.IPAM_CONFLICTS._value.get() == 1
    watching.kube.fails_before = lambda verb, name: None
    await watching.passes(400)
    assert [record.message for record in caplog.records].count("invalid pod CIDRs found") == 1
