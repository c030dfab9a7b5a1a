"""The watcher service: a candidate for leadership; the leader publishes the state of the cluster."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from libs.common.bus.flow import follow_flow
from libs.common.bus.ordered_publisher import OrderedPublisher
from libs.common.contract.kube_service import KubeService
from libs.common.contract.node import NETWORK_UNAVAILABLE, Node, trim_node
from libs.common.contract.services import WATCHER
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.subjects import ENRICHED_CSR, ENRICHED_NODE, SNAPSHOT
from libs.common.kube.api import NODES, SERVICES, SIGNING_REQUESTS, KubeApi
from libs.common.kube.objects import SERVICE_CIDRS, Item, Resource, ServiceCidr, UnreadableObject
from libs.common.kube.reflector import ItemCollector, Reflector
from libs.common.observability import metrics
from libs.common.service.leader_elector import LeaderElector, LeadershipLost, find_root_cause
from libs.common.service.service import Dependencies, ServiceDefinition, run_together
from services.watcher.core.kinds import CSR, NODE, SERVICE, Kind, ObjectT
from services.watcher.core.leader_epoch import LeaderEpoch
from services.watcher.core.published_state import PublishedState
from services.watcher.core.stall_detector import select_expected_durables
from services.watcher.core.store import Store
from services.watcher.informer import Informer, ObjectSourceFactory, ServiceCidrInformer
from services.watcher.leader_publisher import LeaderPublisher
from services.watcher.observation_publisher import ObservationPublisher
from services.watcher.resync import Resync
from services.watcher.resync_requests import ResyncRequests
from services.watcher.settings import WatcherSettings
from services.watcher.stats_collectors import NodeStatsCollector, StreamStatsCollector

# One for the Lease; for Nodes, CSRs and Services each a watch, a concurrent list, and a list that confirms an
# absence; for ServiceCIDRs a watch and a concurrent list.
KUBERNETES_CONNECTIONS: Final = 12


class WatcherService:
    """Always follows the stream, so that it can lead at once; lists and watches only while it leads.

    Losing the Lease ends the process, as in the reference controller. In the all-in-one process no other
    service may go on writing, and a new process keeps no state of its time as leader.
    """

    spec = WATCHER

    def __init__(
        self,
        dependencies: Dependencies,
        settings: WatcherSettings,
        *,
        node_source: ObjectSourceFactory[Node] | None = None,
        request_source: ObjectSourceFactory[SigningRequest] | None = None,
        kube_service_source: ObjectSourceFactory[KubeService] | None = None,
        service_cidr_source: ObjectSourceFactory[ServiceCidr] | None = None,
    ) -> None:
        """The sources replace the objects of the API server."""
        bus, clock = dependencies.bus, dependencies.monotonic
        self._dependencies = dependencies
        self._settings = settings
        self._watch_client: KubeApi | None = None
        self._requests = ResyncRequests(clock)
        self._publisher = OrderedPublisher(bus)
        self._published = PublishedState(
            clock=clock,
            on_sequence=self._publisher.record_sequence,
            on_stream_replaced=self._publisher.forget_all,
            on_change=self._requests.wake,
            on_fenced_message=self._republish_fenced,
        )
        self._elector = LeaderElector(
            self._get_watch_client() if settings.uses_lease else None,
            settings,
            dependencies,
            set_gauge=metrics.LEADER.set,
            leader_silence=self._published.seconds_since_leader_heartbeat,
        )
        self._epoch = LeaderEpoch(
            self._published, identity=dependencies.identity, has_lease=settings.uses_lease
        )
        self._leader_publisher = LeaderPublisher(
            bus=bus,
            publisher=self._publisher,
            epoch=self._epoch,
            requests=self._requests,
            heartbeat_ttl_seconds=settings.renew_deadline_seconds,
        )
        reflector = self._build_reflector
        conditions = frozenset({NETWORK_UNAVAILABLE} if settings.needs_network_condition else ())
        trimmed = msgspec.structs.replace(NODES, transform=partial(trim_node, more_conditions=conditions))
        node_source = node_source or partial(reflector, trimmed, partial(Store, NODE))
        request_source = request_source or partial(reflector, SIGNING_REQUESTS, partial(Store, CSR))
        kube_service_source = kube_service_source or partial(reflector, SERVICES, partial(Store, SERVICE))
        service_cidr_source = service_cidr_source or partial(reflector, SERVICE_CIDRS, list[ServiceCidr])
        self._service_cidrs = ServiceCidrInformer(service_cidr_source, self._requests)
        nodes = self._build_kind(NODE, node_source)
        kinds: list[Informer[Any]] = [nodes]
        if settings.watches_requests:
            kinds.append(self._build_kind(CSR, request_source))
        if settings.watches_services:
            kinds.append(self._build_kind(SERVICE, kube_service_source))
        self._resync = Resync(
            dependencies=dependencies,
            elector=self._elector,
            epoch=self._epoch,
            published=self._published,
            publisher=self._leader_publisher,
            kinds=tuple(kinds),
            service_cidrs=self._service_cidrs,
            requests=self._requests,
            republish_seconds=settings.republish_seconds,
        )
        self._stream_stats = StreamStatsCollector(
            bus,
            expected_durables=select_expected_durables(settings.controllers),
            clock=clock,
            on_stats=self._resync.on_stats,
        )
        self._node_stats = NodeStatsCollector(nodes.store, self._requests, dependencies.now)

    async def run(self) -> None:
        """Wait for leadership, lead, and release the Lease at the end."""
        try:
            await run_together(
                follow_flow(self._dependencies.bus, WATCHER.service, self._published, exclude=_is_enriched),
                self._elector.run_term(self._lead),
            )
        except* LeadershipLost as lost:
            raise find_root_cause(lost) from None
        finally:
            if self._watch_client is not None:
                await self._watch_client.close()

    async def _lead(self, lease_transitions: int) -> None:
        self._epoch.begin_term(lease_transitions)
        await run_together(
            *(kind.run() for kind in self._resync.kinds),
            self._service_cidrs.run(),
            self._resync.run(),
            self._resync.republish_periodically(),
            self._leader_publisher.publish_heartbeats(self._elector.renewed),
            self._collect_stream_stats(),
            self._node_stats.run(),
        )

    def problems(self) -> tuple[str, ...]:
        """Return why the stream is not up to date; a standby keeps nothing up to date and is ready."""
        if self._elector.leading_since() is None:
            return self._elector.problems()
        return (
            *self._elector.problems(),
            *self._published.problems(),
            *self._resync.problems(),
            *(why for kind in self._resync.kinds for why in kind.problems()),
            *self._service_cidrs.problems(),
        )

    async def _collect_stream_stats(self) -> None:
        await self._resync.first_completed.wait()  # the stream may not exist earlier
        await self._stream_stats.run()

    def _republish_fenced(self, subject: str) -> None:
        """Publish an object or the snapshot again after a message on this subject that followers ignore.

        If this watcher is the former leader, the new leader publishes it, or this watcher's next round does.
        """
        if not self._epoch.is_current:
            return
        if subject == SNAPSHOT:
            self._requests.request_verification()
        else:
            for kind in self._resync.kinds:
                kind.publisher.enqueue_subject(subject)

    # ---- wiring

    def _build_kind(self, kind: Kind[ObjectT], source: ObjectSourceFactory[ObjectT]) -> Informer[ObjectT]:
        parts = self._dependencies
        publisher = ObservationPublisher(
            kind,
            Store(kind),
            published=self._published,
            publisher=self._publisher,
            requests=self._requests,
            in_flight=self._settings.in_flight,
            now=parts.now,
            jitter=parts.random.random,
        )
        return Informer(source, publisher, self._epoch)

    def _build_reflector(
        self,
        resource: Resource[Item],
        new_collector: Callable[[], ItemCollector[Item]],
        on_unreadable: Callable[[UnreadableObject], None],
        on_failure: Callable[[Exception], None],
    ) -> Reflector[Item]:
        return Reflector(
            self._get_watch_client(),
            resource,
            on_unreadable=on_unreadable,
            on_failure=on_failure,
            new_collector=new_collector,
            clock=self._dependencies.monotonic,
            jitter=self._dependencies.random.random,
        )

    def _get_watch_client(self) -> KubeApi:
        # Separate connections: hanging writes of other services must delay neither a renewal nor a watch.
        if self._watch_client is None:
            self._watch_client = self._dependencies.require_kube().with_own_connections(
                connections=KUBERNETES_CONNECTIONS
            )
        return self._watch_client


def _is_enriched(subject: str) -> bool:
    """Whether the subject has enrichments, which double the traffic and which the watcher does not need."""
    return subject.startswith((ENRICHED_NODE, ENRICHED_CSR))


WATCHER_DEFINITION = ServiceDefinition(spec=WATCHER, settings=WatcherSettings, build=WatcherService)
