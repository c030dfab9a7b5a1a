"""csr: consumes enriched requests, follows the flow, and writes approvals and denials."""

import asyncio
import logging

import msgspec

from libs.common import metrics
from libs.common.bus import Message
from libs.common.controllers import CSR_APPROVAL
from libs.common.decisions import Decisions
from libs.common.delivery import TemporaryError
from libs.common.events import (
    CsrGone,
    CsrObserved,
    EnrichedCsrGone,
    EnrichedNodeGone,
    Leading,
    NodeEnriched,
    NodeGone,
    NodeObserved,
    NodeUnreachable,
)
from libs.common.flow_table import FlowTable
from libs.common.handling import Handling
from libs.common.ownership import why_not_owned
from libs.common.process.service import Parts, Run
from libs.common.signing_request import SigningRequest
from libs.common.subjects import ENRICHED_NODE, FLOW, NETWORKS, OBSERVED_CSR, OBSERVED_NODE, name_in
from libs.common.watch_flow import WatchFlow
from libs.common.watch_ownership import WatchOwnership
from libs.common.wiring import CSR
from services.csr.approvals_api import ApprovalsApi
from services.csr.budget import Budget
from services.csr.claims import Claims
from services.csr.decide import Policy
from services.csr.judge import Judge
from services.csr.metadata_reports import MetadataReports
from services.csr.node_events import NodeEvents
from services.csr.on_csr_enriched import OnCsrEnriched
from services.csr.requesters import Requesters
from services.csr.service_networks import ServiceNetworks
from services.csr.settings import CsrSettings
from services.csr.waiting import WaitingRequests
from services.csr.watch_endpoint import WatchEndpoint
from services.csr.watch_waiting import WatchWaiting
from services.csr.watched_requests import why_undecidable

log = logging.getLogger(__name__)


class CsrService:
    """Any number of replicas share the work; each follows the flow for itself."""

    wiring = CSR

    def __init__(self, parts: Parts, settings: CsrSettings) -> None:
        self._parts = parts
        self._settings = settings
        self._led = asyncio.Event()
        self._not_taken_in: set[str] = set()  # subjects of which we do not know what they say
        self._held_up = False  # something was handed back because nothing may be decided
        self._reports = MetadataReports(
            repeat_seconds=settings.repeat_seconds, without_talos=settings.without_talos
        )
        self._requesters = Requesters()
        self._waiting = WaitingRequests()
        self._claims = claims = Claims()
        self._table = table = FlowTable(
            clock=parts.monotonic,
            keep=_is_worth_keeping,
            on_message=self._heard,
            on_dropped=self._dropped,
            on_void=self._all_is_void,
            on_caught_up=self._caught_up,
        )
        self._flow = WatchFlow(table, problems=why_undecidable)
        dry = settings.observe_only
        kube = parts.kubernetes()
        self._decisions = Decisions(
            parts.bus,
            service=CSR.service,
            kind="csr",
            now=parts.now,
            called={"approved": "would-approve", "denied": "would-deny"} if dry else {},
        )
        self._ownership = WatchOwnership(
            settings.cloud_config,
            settings.file,
            service=CSR.service,
            controller=CSR_APPROVAL,
            look_seconds=settings.file_look_seconds,
            changed=self._look_at_all,
            now=parts.now,
        )
        self._service_networks = ServiceNetworks(settings.service_cluster_ip_range, changed=self._look_at_all)
        self._endpoint = WatchEndpoint(
            kube, changed=self._look_at_all, clock=parts.monotonic, random=parts.random
        )
        self._events = NodeEvents(
            kube, claims.node, is_foreign=self._is_foreign, now=parts.now, observe_only=dry
        )
        budget = Budget()
        judge = Judge(
            table=table,
            requesters=self._requesters,
            claims=claims,
            reports=self._reports,
            budget=budget,
            policy=self._policy,
            ownership=self._ownership.ownership,
            why_undecided=self._why_undecided,
            clock=parts.monotonic,
        )
        self._on_csr_enriched = OnCsrEnriched(
            table=table,
            flow=self._flow,
            judge=judge,
            budget=budget,
            requesters=self._requesters,
            waiting=self._waiting,
            approvals=ApprovalsApi(kube, observe_only=dry),
            decisions=self._decisions,
            events=self._events,
            clock=parts.monotonic,
        )
        handling = Handling(
            CSR.service, "csr", system=parts.bus.system, clock=parts.monotonic, random=parts.random
        )
        self._handle = handling.around(self._decide_on)
        self._watch_waiting = WatchWaiting(
            table=table,
            flow=self._flow,
            requesters=self._requesters,
            waiting=self._waiting,
            events=self._events,
            handle=self._handle,
            clock=parts.monotonic,
            now=parts.now,
        )

    async def run(self) -> None:
        """Work until cancelled; what is in flight is finished."""
        metrics.LEADER_SILENCE.labels(CSR.service).set_function(self._table.leader_silence_seconds)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._parts.bus.follow(CSR.service, f"{FLOW}.>", self._table))
                tasks.create_task(self._events.run())
                tasks.create_task(self._ownership.run())
                tasks.create_task(self._endpoint.run())
                tasks.create_task(self._decide())
        finally:
            await self._events.last_words()

    def problems(self) -> tuple[str, ...]:
        """Why nothing is decided now, or not by the newest file."""
        return (
            *self._why_undecided(),
            *self._reports.problems(),
            *self._service_networks.problems(without_talos=self._reports.without_talos),
            *self._endpoint.problems(),
            *self._ownership.problems(),
        )

    def _why_undecided(self) -> tuple[str, ...]:
        paused = self._paused()
        return (*self._flow.problems(), *((paused,) if paused else ()))

    async def _decide(self) -> None:
        await self._led.wait()  # before that every message would only be handed back
        [durable] = CSR.durables
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_waiting.run())
            consuming = self._parts.bus.consume(durable, self._handle, in_flight=self._settings.in_flight)
            tasks.create_task(consuming)

    async def _decide_on(self, message: Message) -> None:
        try:
            await self._on_csr_enriched(message)
        except TemporaryError:
            self._held_up |= bool(self._why_undecided())
            raise

    def _paused(self) -> str:
        """Why nothing may be written."""
        if self._not_taken_in:
            return f"defect: no sense could be made of {min(self._not_taken_in)}, so claims may be missing"
        if self._settings.observe_only:
            return ""
        return self._table.why_not_led(silence_seconds=self._settings.leader_silence_seconds)

    def _policy(self) -> Policy:
        """What the operator allows, and what is known of the cluster now."""
        return msgspec.structs.replace(
            self._settings.policy,
            service_networks=self._service_networks.known,
            endpoint=self._endpoint.endpoint,
        )

    def _is_foreign(self, name: str) -> bool:
        """Whether that Node is another's."""
        node = self._claims.node(name)
        return node is not None and bool(why_not_owned(self._ownership.ownership(), node))

    # ---- what the flow says

    def _heard(self, message: Message) -> None:
        try:
            self._take_in(message.event)
            self._not_taken_in.discard(message.subject)
        except Exception:
            # Whoever wrote it must neither end the process nor hide a claim: until it is replaced or gone,
            # nothing is approved.
            self._not_taken_in.add(message.subject)
            log.exception("a message could not be taken in", extra={"subject": message.subject})
        if self._settings.observe_only or (isinstance(message.event, Leading) and not self._table.replaying):
            self._led.set()
        if self._reports.heard(
            message,
            at=self._parts.monotonic(),
            is_live=not self._table.replaying,
            is_complete=self._table.complete,
        ):
            self._look_at_all()
        self._flow.moved()
        if self._held_up and not self._why_undecided():
            self._look_at_all()  # what was handed back may come again in a minute only

    def _take_in(self, event: object) -> None:
        self._service_networks.take_in(event)
        match event:
            case NodeObserved(node=node):
                self._claims.observed(node)
                self._changed(node.name)
            case NodeGone(name=name):
                self._node_gone(name)
            case NodeEnriched(node=node) | NodeUnreachable(node=node):
                self._claims.enriched(event)
                self._changed(node.name)
            case EnrichedNodeGone(name=name):
                self._claims.enriched_gone(name)
                self._changed(name)
            case CsrObserved(request=request):
                self._request_observed(request)
            case CsrGone(name=name):
                self._request_gone(name)

    def _dropped(self, subject: str) -> None:
        """The stream holds it no more: that is how long it has been gone."""
        self._not_taken_in.discard(subject)
        if subject == NETWORKS:
            self._service_networks.forget()
        for prefix, gone in (
            (OBSERVED_NODE, self._node_gone),
            (ENRICHED_NODE, self._claims.enriched_gone),
            (OBSERVED_CSR, self._request_gone),
        ):
            if subject.startswith(f"{prefix}."):
                gone(name_in(subject, prefix))
        if self._reports.dropped(subject):
            self._look_at_all()

    def _caught_up(self) -> None:
        """What was said before has been handled by somebody, or not."""
        self._reports.caught_up(is_complete=self._table.complete)
        self._look_at_all()
        self._flow.moved()

    def _look_at_all(self) -> None:
        """At each pending request that is to be decided."""
        self._held_up = False
        self._watch_waiting.want([pending.place.name for pending in self._requesters.all_newest()])

    def _all_is_void(self) -> None:
        self._not_taken_in.clear()
        self._reports.clear()
        self._claims.clear()
        self._requesters.clear()
        self._waiting.clear()
        self._on_csr_enriched.forget_all()
        self._decisions.forget_all()
        self._watch_waiting.forget_all()
        self._service_networks.forget()

    def _changed(self, node: str) -> None:
        self._watch_waiting.want(self._waiting.on(node))
        if self._on_csr_enriched.was_left_alone(node) and (newest := self._requesters.newest(node)):
            self._watch_waiting.want([newest])

    def _node_gone(self, name: str) -> None:
        self._claims.node_gone(name)
        self._waiting.node_gone(name)
        self._changed(name)

    def _request_observed(self, request: SigningRequest) -> None:
        was_pending = request.name in self._requesters.pending
        superseded = self._requesters.observed(request)
        if not request.pending:
            self._settled(request.name)
            if was_pending and not self._requesters.newest(request.node_name):
                self._requester_answered(request)
        self._watch_waiting.want([superseded] if superseded else ())

    def _requester_answered(self, request: SigningRequest) -> None:
        """By us, by another replica, or by a person: should its node wait again, that is another wait."""
        self._waiting.decided(request.name, request.node_name)
        if request.condition("Approved"):
            self._events.approved(request)

    def _request_gone(self, name: str) -> None:
        comes_up = self._requesters.gone(name)
        self._settled(name)
        self._decisions.forget(name)
        self._watch_waiting.want([comes_up] if comes_up else ())

    def _settled(self, name: str) -> None:
        self._waiting.left(name)
        self._on_csr_enriched.forget(name)
        self._watch_waiting.forget(name)


def _is_worth_keeping(message: Message) -> bool:
    """A request that is not there is gone; that it is gone one kubelet can have said without end."""
    return not isinstance(message.event, CsrGone | EnrichedCsrGone)


CSR_RUN = Run(wiring=CSR, settings=CsrSettings, build=CsrService, controller=CSR_APPROVAL)
