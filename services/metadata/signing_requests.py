"""All requests for certificates that the flow tells of; each has a task of its own while it is pending."""

import asyncio
import logging
from collections.abc import Callable

from libs.common.bus import Message
from libs.common.events import CsrEnriched, CsrGone, CsrObserved, EnrichedCsrGone
from libs.common.flow_table import FlowTable
from libs.common.process.service import Parts
from libs.common.publisher import OrderedPublisher
from libs.common.subjects import ENRICHED_CSR, OBSERVED_CSR, name_in
from services.metadata.contested import Claims
from services.metadata.dial_back import DialBacks
from services.metadata.kept_running import kept_running
from services.metadata.known import Known
from services.metadata.on_csr_observed import RequestReconciler, RequestSurroundings, enriched_csr
from services.metadata.requests import KnownRequest, first_seen, is_older, is_ours
from services.metadata.schedule import Pace

log = logging.getLogger(__name__)


class SigningRequests:
    """Hears of requests, and of whatever changes at the Nodes that ask."""

    def __init__(
        self,
        table: FlowTable,
        publisher: OrderedPublisher,
        parts: Parts,
        *,
        pace: Pace,
        without_talos: bool,
        node: Callable[[str], Known | None],
        hurry: Callable[[str], None],
        dial_backs: DialBacks,
    ) -> None:
        self._table = table
        self._publisher = publisher
        self._parts = parts
        self._pace = pace
        self._claims = Claims(node)
        self._requests: dict[str, RequestReconciler] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._of_node: dict[str, dict[str, RequestReconciler]] = {}
        self._surroundings = RequestSurroundings(
            publisher=publisher,
            last=parts.bus.last,
            pace=pace,
            without_talos=without_talos,
            monotonic=parts.monotonic,
            now=parts.now,
            random=parts.random,
            node=node,
            superseded=self._is_superseded,
            hurry=hurry,
            claims=self._claims,
            dial_backs=dial_backs,
            finished=self._forget,
        )

    def hear(self, message: Message) -> None:
        """A message about a request, kept or not."""
        match message.event:
            case CsrObserved() | CsrGone() if not self._table.replaying:
                self._observe(message, live=True)
            case CsrEnriched() | EnrichedCsrGone() as event:
                is_news = message.sequence > self._publisher.sequence_of(message.subject)
                self._publisher.learned(message.subject, message.sequence)
                request = self._requests.get(name_in(message.subject, ENRICHED_CSR))
                if is_news and request is not None and not self._table.replaying:
                    request.overhear(event)

    def is_worth_keeping(self, message: Message) -> bool:
        """What is decided is nobody's business any more; what is said of requests is compared and let go."""
        match message.event:
            case CsrObserved(request=request):
                return is_ours(request)
            case CsrEnriched() | EnrichedCsrGone():
                return self._table.replaying
        return True

    def caught_up(self) -> None:
        """The table holds what the stream does."""
        self._make_void_what_was_lost()
        for message in self._table.under(OBSERVED_CSR):
            self._observe(message)
        unheard = set(self._requests)
        for message in self._table.under(ENRICHED_CSR):
            name, event = name_in(message.subject, ENRICHED_CSR), enriched_csr(message)
            if name in self._requests and event is not None:
                unheard.discard(name)
                self._requests[name].overhear(event)
            self._table.forget(message.subject)
        for name in unheard:
            self._requests[name].is_unheard()
        self.forget_unnamed()
        for request in self._requests.values():
            request.bus_is_back()

    def _make_void_what_was_lost(self) -> None:
        """A server that lost its last messages with a disk gives their sequences to others."""
        for name, request in self._requests.items():
            message = self._table.last(f"{OBSERVED_CSR}.{name}")
            if message is None or message.sequence < request.known.sequence:
                request.stream_is_another()

    def stream_is_another(self) -> None:
        """Nothing that was said is left."""
        for request in self._requests.values():
            request.stream_is_another()

    def node_changed(self, name: str) -> None:
        """Something else is known of that Node."""
        self._claims.changed(name)
        self._wake(name)

    def forget_unnamed(self) -> None:
        """Once the present stream names every pending request, what it does not name has gone unseen."""
        if not self._table.complete:
            return
        for name in [n for n in self._requests if self._table.last(f"{OBSERVED_CSR}.{n}") is None]:
            self._tasks[name].cancel()
            self._forget(name)

    async def close(self) -> None:
        """Stop; what is being said may get lost, and is said at the next start."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _observe(self, message: Message, *, live: bool = False) -> None:
        event = message.event
        assert isinstance(event, CsrObserved | CsrGone)
        try:
            name = name_in(message.subject, OBSERVED_CSR)
            request = self._requests.get(name)
            if request is None:
                self._begin(name, message, event)
            else:
                self._unlist(name, request)
                self._wake(request.known.node_name)
                request.observe(message, event)
                self._list(name, request)
            if (listed := self._requests.get(name)) is not None:
                self._wake(listed.known.node_name)
            if live and name in self._requests:
                self._requests[name].hop.heard(message)
        except Exception:
            # Requests are written by others: one that breaks us must not keep us from all the rest.
            log.exception("an observation was not understood", extra={"subject": message.subject})

    def _begin(self, name: str, message: Message, event: CsrObserved | CsrGone) -> None:
        subject = f"{ENRICHED_CSR}.{name}"
        if isinstance(event, CsrObserved) and not is_ours(event.request):
            return
        if isinstance(event, CsrGone) and not self._publisher.sequence_of(subject):
            return  # nobody was told of it
        heard = self._table.last(subject)
        age = (self._parts.now() - heard.published_at).total_seconds() if heard else 0.0
        known = first_seen(
            message,
            event,
            enriched_csr(heard),
            heard_again_in=max(0.0, self._pace.repeat - max(0.0, age)),
            now=self._parts.monotonic(),
        )
        request = self._requests[name] = RequestReconciler(name, known, self._surroundings)
        self._list(name, request)
        running = kept_running(request.run, self._parts.random, csr=name)
        self._tasks[name] = asyncio.create_task(running, name=f"request {name}")

    def _is_superseded(self, known: KnownRequest) -> bool:
        others = self._of_node.get(known.node_name, {}).values()
        return any(is_older(known, other.known) for other in others)

    def _wake(self, node: str) -> None:
        """Which of its requests is the newest may have changed, or what is known of the Node."""
        for request in self._of_node.get(node, {}).values():
            request.node_changed()

    def _list(self, name: str, request: RequestReconciler) -> None:
        self._of_node.setdefault(request.known.node_name, {})[name] = request

    def _unlist(self, name: str, request: RequestReconciler) -> None:
        of_node = self._of_node.get(request.known.node_name, {})
        of_node.pop(name, None)
        if not of_node:
            self._of_node.pop(request.known.node_name, None)

    def _forget(self, name: str) -> None:
        request = self._requests.pop(name, None)
        self._tasks.pop(name, None)
        if request is not None:
            self._unlist(name, request)
            self._wake(request.known.node_name)
