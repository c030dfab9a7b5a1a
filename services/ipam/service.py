"""ipam: consumes enriched Nodes, follows the flow, claims blocks in Kubernetes and writes them to Nodes."""

from collections.abc import Mapping, Sequence

from libs.common.bus.consumer_middleware import ConsumerMiddleware
from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.delivery import TemporaryError
from libs.common.bus.flow import Flow
from libs.common.contract.events import NodeGone, NodeObserved, Quarantine
from libs.common.contract.node import Node
from libs.common.contract.services import IPAM
from libs.common.contract.subjects import OBSERVED_NODE, is_csr_or_service_subject
from libs.common.kube.event_recorder import EventRecorder
from libs.common.service.pulse_publisher import QuarantiningService
from libs.common.service.service import Dependencies, ServiceDefinition, run_every, run_together
from libs.common.service.startup_gate import StartupGate
from services.ipam.allocator import Allocator
from services.ipam.batcher import Batcher
from services.ipam.config_reloader import ConfigReloader
from services.ipam.core.allocation import AllocationRequest, AllocationResult
from services.ipam.core.cluster_view import ClusterView
from services.ipam.core.ledger import Exclusions
from services.ipam.core.pool_usage import build_quarantine
from services.ipam.core.pools import CannotAllocate, NotManaged, NotReady, Pool
from services.ipam.garbage_collector import GarbageCollector
from services.ipam.on_node_enriched import OnNodeEnriched
from services.ipam.reports import (
    ADDRESSES_IGNORED,
    COMPONENT,
    METRICS_INTERVAL_SECONDS,
    NodeEvents,
    PoolMetrics,
    SweepReporter,
)
from services.ipam.settings import IpamSettings
from services.ipam.waiting_nodes import WaitingNodes


class IpamService:
    """Any number of replicas share the work; each has its own stream cache."""

    spec = IPAM

    def __init__(self, dependencies: Dependencies, settings: IpamSettings) -> None:
        kube, now, clock = dependencies.require_kube(), dependencies.now, dependencies.monotonic
        self._bus, self._settings = dependencies.bus, settings
        # State from the flow.
        gate = StartupGate()
        self._cluster_view = ClusterView(
            settings.network_flags,
            settings.cidr_allocator_type,
            gate,
            on_change=self._on_view_change,
        )
        self._flow = Flow(
            parts=dependencies,
            service=IPAM.service,
            max_silence_seconds=settings.leader_silence_seconds,
            observe_only=settings.observe_only,
            apply=self._apply,
            consequence="addresses may be missing",
            gate=gate,
            on_gate_open=self._on_view_change,
            exclude=is_csr_or_service_subject,
            on_stream_replaced=self._on_stream_replaced,
            on_caught_up=self._enqueue_nodes_without_pod_cidrs,
        )
        # Configuration.
        self._config_reloader = ConfigReloader(
            settings,
            get_blocks_in_use=self._get_blocks_in_use,
            on_change=self._on_config_change,
            kube=kube,
            now=now,
        )
        # Reports.
        self._event_recorder = EventRecorder(
            kube,
            component=COMPONENT,
            is_foreign=lambda name: self._is_not_managed(self._cluster_view.get_node(name)),
            now=now,
            observe_only=settings.observe_only,
        )
        self._node_events = NodeEvents(self._event_recorder, self._cluster_view.cluster_wide_reasons)
        self._pool_metrics = PoolMetrics()
        self._decisions = DecisionPublisher(dependencies.bus, service=IPAM.service, kind="node", now=now)
        # Claims, writes and releases.
        self._allocator = Allocator(
            kube,
            now=now,
            clock=clock,
            quarantine=settings.quarantine,
            is_foreign=self._is_not_managed,
        )
        self._batcher = Batcher(self._claim, clock=clock, random=dependencies.random)
        self._waiting_nodes = WaitingNodes(
            stream_cache=self._flow.cache, node_events=self._node_events, clock=clock
        )
        self._garbage_collector = GarbageCollector(
            self._allocator,
            resync_seconds=settings.resync_seconds,
            get_pause_reason=self._get_sweep_pause_reason,
            report=SweepReporter(self._node_events, self._pool_metrics).report,
            on_blocks_freed=self._waiting_nodes.enqueue_all,
            clock=clock,
            random=dependencies.random,
        )
        self._on_node_enriched = OnNodeEnriched(
            flow=self._flow,
            get_node=self._cluster_view.get_node,
            waiting_nodes=self._waiting_nodes,
            select_pools=self._select_pools,
            get_ownership_labels=self._config_reloader.ownership_labels,
            batcher=self._batcher,
            allocator=self._allocator,
            decisions=self._decisions,
            node_events=self._node_events,
            observe_only=settings.observe_only,
        )
        middleware = ConsumerMiddleware(IPAM.service, "node", dependencies)
        self._handle = middleware.wrap(self._on_node_enriched)

    async def run(self) -> None:
        """Run until cancelled; finish messages in flight."""
        try:
            await run_together(
                self._flow.run(),
                self._event_recorder.run(),
                self._config_reloader.run(),
                self._serve(),
            )
        finally:
            await self._event_recorder.flush()

    def problems(self) -> tuple[str, ...]:
        """Return why ipam allocates nothing, or not for every Node."""
        return (
            *self._flow.list_pause_reasons(),
            *self._list_unknown_nodes(),
            *self._cluster_view.problems(),
            *self._allocator.pages.explain_closed().values(),
            *self._config_reloader.problems(),
        )

    def list_quarantine(self) -> Quarantine | None:
        """Return the blocks in quarantine, for the pulse; None before the claims were read."""
        read_at, pages = self._allocator.pages_read_at, self._allocator.pages.by_range.values()
        return build_quarantine(pages, self._settings.quarantine, read_at) if read_at is not None else None

    async def _serve(self) -> None:
        await self._flow.wait_for_leader()
        [durable] = IPAM.durables
        await run_together(
            self._waiting_nodes.run(self._handle),
            self._garbage_collector.run(),
            run_every(METRICS_INTERVAL_SECONDS, self._refresh_metrics),
            self._bus.consume(durable, self._handle, in_flight=self._settings.in_flight),
        )

    def _get_sweep_pause_reason(self) -> str:
        if self._settings.observe_only:
            return "observe-only mode"
        return "; ".join(self._flow.list_pause_reasons())

    def _select_pools(self, node: Node) -> tuple[Pool, ...] | NotReady | CannotAllocate | NotManaged:
        """Return the pools for that Node, or why there are none."""
        if foreign := self._config_reloader.explain_not_managed(node):
            return NotManaged(foreign)
        pools = self._cluster_view.select_pools(node, self._config_reloader.pools)
        if isinstance(pools, tuple):
            self._pool_metrics.add_pools(pools)
        return pools

    def _get_exclusions(self) -> Exclusions:
        """Return what no block may overlap now. Raises TemporaryError while that is unknown."""
        if why := (*self._flow.list_pause_reasons(), *self._list_unknown_nodes()):
            raise TemporaryError("ipam cannot claim blocks now", "; ".join(why))
        return self._cluster_view.get_exclusions()

    def _list_unknown_nodes(self) -> tuple[str, ...]:
        """Return why no block may be claimed: the addresses of a Node are unknown."""
        names = self._flow.cache.list_unknown(OBSERVED_NODE)
        why = "the last message about Node {} is unreadable or fenced, so no block is claimed"
        return (why.format(min(names)),) if names else ()

    async def _claim(self, requests: Sequence[AllocationRequest]) -> Mapping[str, AllocationResult]:
        claimed = await self._allocator.claim(requests, self._get_exclusions)
        self._pool_metrics.record_claimed(claimed)
        for name, ignored in claimed.ignored_addresses.items():
            if (node := self._cluster_view.get_node(name)) is not None:
                self._node_events.record(name, node.uid, ADDRESSES_IGNORED, ignored)
        return claimed.results

    def _refresh_metrics(self) -> None:
        self._pool_metrics.refresh(self._allocator.pages.by_range.values())

    def _is_not_managed(self, node: Node | None) -> bool:
        return bool(self._config_reloader.explain_not_managed(node))

    def _get_blocks_in_use(self) -> Mapping[str, str] | None:
        """Return block -> Node name without foreign Nodes, whose blocks do not restrict pool changes."""
        if self._flow.problems():
            return None
        pages = self._allocator.pages.by_range.values()
        claims = {
            claim.block: claim.node
            for page in pages
            for claim in page.claims.values()
            if claim.gone_since is None and not self._is_foreign(claim.node, claim.uid)
        }
        carried = self._cluster_view.iter_pod_cidrs()
        ours = {block: node.name for block, node in carried if not self._is_foreign(node.name, node.uid)}
        return {**claims, **ours}

    def _is_foreign(self, name: str, uid: str) -> bool:
        """Whether another controller manages that very Node; False if the Node is unknown."""
        node = self._cluster_view.get_node(name)
        return node is not None and node.uid == uid and self._is_not_managed(node)

    def _on_view_change(self) -> None:
        self._pool_metrics.reset()
        self._waiting_nodes.enqueue_all()

    def _on_config_change(self) -> None:
        self._pool_metrics.reset()
        self._enqueue_nodes_without_pod_cidrs()

    def _enqueue_nodes_without_pod_cidrs(self) -> None:
        """Process also Nodes whose messages an earlier process or another replica has acknowledged."""
        self._waiting_nodes.enqueue(self._cluster_view.list_nodes_without_pod_cidrs())

    # ---- messages of the flow

    def _apply(self, event: object) -> None:
        match event:
            case NodeObserved(node=node):
                before = self._cluster_view.get_node(node.name)
                if before is not None and before.uid != node.uid:
                    self._on_node_deleted(node.name)
                elif before is not None and before.spec.pod_cidrs and not node.spec.pod_cidrs:
                    self._waiting_nodes.add(node, "removed", "its pod CIDRs have disappeared")
                # a change of podCIDRs alone causes no enrichment
                self._on_node_enriched.on_node_observed(node)
            case NodeGone(name=name) if self._cluster_view.get_node(name) is not None:
                self._on_node_deleted(name)
        self._cluster_view.apply(event)

    def _on_stream_replaced(self) -> None:
        self._cluster_view.on_stream_replaced()
        self._waiting_nodes.clear()
        self._decisions.forget_all()
        self._garbage_collector.restart()

    def _on_node_deleted(self, name: str) -> None:
        self._waiting_nodes.remove(name)
        self._decisions.forget(name)
        self._garbage_collector.request_sweep()


def _build(dependencies: Dependencies, settings: IpamSettings) -> QuarantiningService:
    return IpamService(dependencies, settings)


IPAM_DEFINITION = ServiceDefinition(spec=IPAM, settings=IpamSettings, build=_build)
