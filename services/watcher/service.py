"""The watcher service: a candidate for leadership; the leader publishes the state of the cluster."""

from collections.abc import Callable
from typing import Final

from libs.common.bus.follow_flow import follow_flow
from libs.common.bus.ordered_publisher import OrderedPublisher
from libs.common.contract.node import Node
from libs.common.contract.services import WATCHER
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.subjects import ENRICHED_CSR, ENRICHED_NODE
from libs.common.kube.api import NODES, SIGNING_REQUESTS, KubeApi
from libs.common.kube.objects import SERVICE_CIDRS, Item, Resource, ServiceCidr, UnreadableObject
from libs.common.kube.reflector import ItemCollector, Reflector
from libs.common.observability import metrics
from libs.common.service.leader_elector import (
    LeaderElector,
    LeadershipLost,
    build_leader_elector,
    find_root_cause,
)
from libs.common.service.run_together import run_together
from libs.common.service.service import Dependencies, ServiceDefinition
from services.watcher.informer import ObjectSourceFactory, ObjectSources
from services.watcher.kinds import CSR, NODE
from services.watcher.leadership_term import LeadershipTerm
from services.watcher.published_state import PublishedState
from services.watcher.settings import WatcherSettings
from services.watcher.store import Store

# One for the Lease; for Nodes and for CSRs a watch, a concurrent list, and a list that confirms an absence;
# for ServiceCIDRs a watch and a concurrent list.
KUBERNETES_CONNECTIONS: Final = 9


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
        service_cidr_source: ObjectSourceFactory[ServiceCidr] | None = None,
        elector: LeaderElector | None = None,
    ) -> None:
        """The sources and `elector` replace the objects and the Lease of the API server."""
        self._dependencies = dependencies
        self._settings = settings
        self._publisher = OrderedPublisher(dependencies.bus)
        self._published = PublishedState(
            clock=dependencies.monotonic,
            on_sequence=self._publisher.record_sequence,
            on_stream_replaced=self._publisher.forget_all,
            on_change=self._on_change,
            on_fenced_message=self._on_fenced_message,
        )
        self._watch_client: KubeApi | None = None
        self._sources = ObjectSources(
            nodes=node_source or self._build_node_reflector,
            requests=request_source or self._build_request_reflector,
            service_cidrs=service_cidr_source or self._build_service_cidr_reflector,
        )
        self._elector = elector or self._build_elector()
        self._term: LeadershipTerm | None = None

    async def run(self) -> None:
        """Wait for leadership, lead, and release the Lease at the end."""
        try:
            bus = self._dependencies.bus
            await run_together(
                follow_flow(bus, WATCHER.service, self._published, exclude=_is_enriched),
                self._elector.run_term(self._lead),
            )
        except* LeadershipLost as lost:
            raise find_root_cause(lost) from None
        finally:
            if self._watch_client is not None:
                await self._watch_client.close()

    def problems(self) -> tuple[str, ...]:
        """Return why the stream is not up to date; a standby keeps nothing up to date and is ready."""
        return (*self._elector.problems(), *(self._term.problems() if self._term is not None else ()))

    async def _lead(self, lease_transitions: int) -> None:
        self._term = LeadershipTerm(
            self._dependencies,
            self._settings,
            elector=self._elector,
            lease_transitions=lease_transitions,
            published=self._published,
            publisher=self._publisher,
            sources=self._sources,
        )
        await self._term.run()

    def _on_change(self) -> None:
        if self._term is not None:
            self._term.wake()

    def _on_fenced_message(self, subject: str) -> None:
        if self._term is not None:
            self._term.republish_fenced(subject)

    def _get_watch_client(self) -> KubeApi:
        # Separate connections: hanging writes of other services must delay neither a renewal nor a watch.
        if self._watch_client is None:
            self._watch_client = self._dependencies.require_kube().with_own_connections(
                connections=KUBERNETES_CONNECTIONS
            )
        return self._watch_client

    def _build_node_reflector(
        self, on_unreadable: Callable[[UnreadableObject], None], on_failure: Callable[[Exception], None]
    ) -> Reflector[Node]:
        return self._build_reflector(NODES, lambda: Store(NODE), on_unreadable, on_failure)

    def _build_request_reflector(
        self, on_unreadable: Callable[[UnreadableObject], None], on_failure: Callable[[Exception], None]
    ) -> Reflector[SigningRequest]:
        return self._build_reflector(SIGNING_REQUESTS, lambda: Store(CSR), on_unreadable, on_failure)

    def _build_service_cidr_reflector(
        self, on_unreadable: Callable[[UnreadableObject], None], on_failure: Callable[[Exception], None]
    ) -> Reflector[ServiceCidr]:
        return self._build_reflector(SERVICE_CIDRS, list[ServiceCidr], on_unreadable, on_failure)

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

    def _build_elector(self) -> LeaderElector:
        return build_leader_elector(
            self._get_watch_client() if self._settings.uses_lease else None,
            self._settings,
            self._dependencies,
            set_gauge=metrics.LEADER.set,
            leader_silence=self._published.seconds_since_leader_heartbeat,
        )


def _is_enriched(subject: str) -> bool:
    """Whether the subject has enrichments, which double the traffic and which the watcher does not need."""
    return subject.startswith((ENRICHED_NODE, ENRICHED_CSR))


WATCHER_DEFINITION = ServiceDefinition(spec=WATCHER, settings=WatcherSettings, build=WatcherService)
