"""The watcher as a service: a candidate, and while it leads the only one who says how the cluster is."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NoReturn

from libs.common import metrics
from libs.common.kube_api.api import NODES, SIGNING_REQUESTS, KubeApi
from libs.common.kube_api.lock import LeaseLock
from libs.common.kube_api.objects import Resource, UnreadableObject
from libs.common.kube_api.reflector import Reflector
from libs.common.node import Node
from libs.common.process.service import Parts, Run
from libs.common.publisher import OrderedPublisher
from libs.common.signing_request import SigningRequest
from libs.common.subjects import ENRICHED_CSR, ENRICHED_NODE, FLOW
from libs.common.wiring import WATCHER
from services.watcher.held import HeldFlow
from services.watcher.kinds import CSR, NODE, Kind, Seen
from services.watcher.leader import ByLease, Candidacy, LeadershipLost, WithoutLease
from services.watcher.reach import Reach
from services.watcher.settings import WatcherSettings
from services.watcher.store import Store
from services.watcher.term import Term
from services.watcher.watch_objects import SourceMaker, Sources

log = logging.getLogger(__name__)

# The Lease, and for Nodes and CSRs each: a watch, the list beside it, and one list that confirms an absence.
KUBERNETES_CONNECTIONS: Final = 7


class WatcherService:
    """Follows its own stream always, so that it can lead at once; lists and watches only while it leads.

    Losing the Lease ends the process, as upstream: in the all-in-one nothing else must go on writing, and a
    new process remembers nothing of a time when it led. Without a Lease, who is outranked waits its turn.
    """

    wiring = WATCHER

    def __init__(
        self,
        parts: Parts,
        settings: WatcherSettings,
        *,
        source: SourceMaker[Node] | None = None,
        requests: SourceMaker[SigningRequest] | None = None,
        candidacy: Candidacy | None = None,
    ) -> None:
        """`source`, `requests` and `candidacy` stand for the API server's Nodes, CSRs and Lease."""
        self._parts = parts
        self._settings = settings
        self._publisher = OrderedPublisher(parts.bus)
        self._held = HeldFlow(
            clock=parts.monotonic,
            learned=self._publisher.learned,
            on_void=self._publisher.forget,
            on_change=self._on_change,
            on_void_message=self._on_void_message,
        )
        self._apart: KubeApi | None = None
        self._sources = Sources(nodes=source or self._nodes, requests=requests or self._requests)
        self._candidacy = candidacy or self._elected()
        self._term: Term | None = None

    async def run(self) -> None:
        """Stand by, lead, and release the Lease at the end."""
        metrics.LEADER_SILENCE.labels(WATCHER.service).set_function(self._held.leader_silence_seconds)
        try:
            async with asyncio.TaskGroup() as tasks:
                following = self._parts.bus.follow(
                    WATCHER.service, f"{FLOW}.>", self._held, but_not=_is_enriched
                )
                tasks.create_task(following)
                await self._lead()
        except* LeadershipLost as lost:
            raise _first(lost) from None
        finally:
            if self._apart is not None:
                await self._apart.close()

    def problems(self) -> tuple[str, ...]:
        """Why the flow is not up to date; a standby has nothing to keep up to date and is ready."""
        return (*self._candidacy.problems(), *(self._term.problems() if self._term is not None else ()))

    async def _lead(self) -> NoReturn:
        while True:
            transitions = await self._candidacy.win()
            try:
                await self._serve(transitions)
            except* LeadershipLost as lost:
                if self._settings.takes_lease:
                    raise
                log.warning("standing by", extra={"reason": str(_first(lost))})
            finally:
                self._term = None
                await self._candidacy.give_up()

    async def _serve(self, transitions: int) -> NoReturn:
        self._term = Term(
            self._parts,
            self._settings,
            candidacy=self._candidacy,
            lease_transitions=transitions,
            held=self._held,
            publisher=self._publisher,
            sources=self._sources,
        )
        await self._term.run()

    def _on_change(self) -> None:
        if self._term is not None:
            self._term.wake()

    def _on_void_message(self, subject: str) -> None:
        if self._term is not None:
            self._term.publish_void_again(subject)

    def _kubernetes(self) -> KubeApi:
        # Connections of its own: writes that hang for the others must delay neither a renewal nor a watch.
        if self._apart is None:
            self._apart = self._parts.kubernetes().apart(connections=KUBERNETES_CONNECTIONS)
        return self._apart

    def _nodes(
        self, on_unreadable: Callable[[UnreadableObject], None], on_trouble: Callable[[Exception], None]
    ) -> Reflector[Node]:
        return self._reflected(NODES, NODE, on_unreadable, on_trouble)

    def _requests(
        self, on_unreadable: Callable[[UnreadableObject], None], on_trouble: Callable[[Exception], None]
    ) -> Reflector[SigningRequest]:
        return self._reflected(SIGNING_REQUESTS, CSR, on_unreadable, on_trouble)

    def _reflected(
        self,
        resource: Resource[Seen],
        kind: Kind[Seen],
        on_unreadable: Callable[[UnreadableObject], None],
        on_trouble: Callable[[Exception], None],
    ) -> Reflector[Seen]:
        return Reflector(
            self._kubernetes(),
            resource,
            on_unreadable=on_unreadable,
            on_trouble=on_trouble,
            collected=lambda: Store(kind),
            clock=self._parts.monotonic,
            jitter=self._parts.random.random,
        )

    def _elected(self) -> Candidacy:
        parts, settings = self._parts, self._settings
        if not settings.takes_lease:
            return WithoutLease(
                self._held,
                retry_seconds=settings.retry_period_seconds,
                silence_seconds=settings.renew_deadline_seconds,
            )
        lock = LeaseLock(
            self._kubernetes(),
            namespace=settings.lease_namespace,
            name=settings.lease_name,
            identity=parts.identity,
            now=parts.now,
            clock=parts.monotonic,
            duration_seconds=int(settings.lease_duration_seconds),
            renew_deadline_seconds=settings.renew_deadline_seconds,
        )
        return ByLease(
            lock,
            retry_seconds=settings.retry_period_seconds,
            clock=parts.monotonic,
            jitter=parts.random.random,
            reach=Reach(
                parts.bus.contact,
                self._held.seconds_since_leading,
                candidate_seconds=settings.renew_deadline_seconds,
                leader_seconds=settings.lease_duration_seconds,
            ),
        )


def _is_enriched(subject: str) -> bool:
    """What others make of our words is as much again, and nothing to us."""
    return subject.startswith((ENRICHED_NODE, ENRICHED_CSR))


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The reason inside nested groups: the process logs one sentence, not a tree."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


WATCHER_RUN = Run(wiring=WATCHER, settings=WatcherSettings, build=WatcherService)
