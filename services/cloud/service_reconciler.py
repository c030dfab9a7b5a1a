"""Reconciles the load balancer of one Service: reads, decides one step, makes it, and reads again."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import msgspec

from libs.clouds.balancers import (
    Balancers,
    Owner,
    ParsedRequest,
    WriteRejection,
    WriteResult,
    WriteSuccess,
)
from libs.clouds.instances import NotFound as NotInCloud
from libs.clouds.instances import Unanswered
from libs.common.bus.delivery import PermanentError
from libs.common.contract.instances import InstanceAnchor
from libs.common.contract.kube_service import BALANCER_ANNOTATION, KubeService
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import NotFound
from libs.common.kube.event_recorder import EventRecorder
from libs.common.kube.events import ObjectReference
from libs.common.observability import metrics
from services.cloud.balancer_reader import VOID_GENERATION, BalancerReader, TermClock
from services.cloud.core.balancers.balancer_record import (
    BalancerAccount,
    BalancerRecord,
    encode_balancer_record,
    explain_lost_record,
    is_selected,
)
from services.cloud.core.balancers.balancer_status import ServiceEvent, describe_wait, describe_write
from services.cloud.core.balancers.balancer_steps import (
    ChangeBalancer,
    CloudWrite,
    CreateBalancer,
    DeleteBalancer,
    KubeWrite,
    ListBalancers,
    NotSelected,
    OtherAccount,
    ReadAnchor,
    ReadBalancer,
    RecordBalancer,
    ReleaseService,
    Settled,
    Step,
    Wait,
    WriteStatus,
)
from services.cloud.core.balancers.balancer_view import (
    BalancerView,
    Lookup,
    Memory,
    remember_confirmed,
    remember_settled,
    remember_write,
)
from services.cloud.core.balancers.plan_step import plan_step
from services.cloud.core.balancers.service_fields import (
    build_conditions,
    build_finalizers,
    build_ingress_entries,
    build_released_finalizers,
    build_request,
)
from services.cloud.core.balancers.target_nodes import TargetNodes

log = logging.getLogger(__name__)

# Of one Service, before the others have their turn: a new balancer takes about ten, and one for each target.
_MAX_STEPS: Final = 200
_WRITE_KINDS: Final[dict[type, str]] = {
    CreateBalancer: "create",
    ChangeBalancer: "change",
    DeleteBalancer: "delete",
}


class ServiceOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a Service waits for, after all that could be done now."""

    uid: str
    # "blocked": it has a condition. "other": it belongs to another account or controller.
    state: Literal["settled", "waiting", "blocked", "other", "dry-run"]
    reason: str
    until: datetime | None  # None: until a change of the Service, of Nodes or of the credential
    has_changes: bool = False  # that are left to another worker


@dataclass(eq=False)
class _ServiceState:
    """What this process knows of one Service since it leads. Losing it costs time, and nothing else."""

    uid: str
    memory: Memory
    lookups: dict[str, Lookup] = field(default_factory=dict)
    settled: Settled | None = None
    recorded: BalancerRecord | None = None  # confirmed by the API server, and not read since


@dataclass(eq=False, kw_only=True)
class ServiceReconciler:
    """Makes the steps of all Services of one account, one Service at a time in each call."""

    account: BalancerAccount
    kube: KubeApi
    reader: BalancerReader
    balancers: Balancers[Any, Any]
    nodes: TargetNodes
    is_followed: Callable[[], bool]  # whether the table of Nodes is complete, apart from expired messages
    anchor: Callable[[], InstanceAnchor | Unanswered | None]  # see BalancerView
    leading_until: Callable[[], float]  # monotonic
    event_recorder: EventRecorder
    monotonic: Callable[[], float]
    now: TermClock  # also the reader's
    is_dry_run: bool

    def __post_init__(self) -> None:
        self._states: dict[str, _ServiceState] = {}
        self.cluster_uid = ""
        self._term_began_at = self.now()

    def begin_term(self, cluster_uid: str) -> None:
        """Forget everything: another process may have written meanwhile."""
        self._states.clear()
        self.reader.clear()
        self.now.restart()
        self.cluster_uid, self._term_began_at = cluster_uid, self.now()

    def forget(self, key: str) -> None:
        """Forget a Service that does not exist."""
        state = self._states.pop(key, None)
        if state is not None:
            self.event_recorder.forget(state.uid)

    def report_rejection(self, key: str, message: str) -> None:
        """Record that the API server rejects a write of the Service, as an admission webhook may."""
        state = self._states.get(key)
        if state is not None:
            namespace, _, name = key.partition(".")
            about = ObjectReference(kind="Service", name=name, namespace=namespace, uid=state.uid)
            self.event_recorder.record_once(about, "SyncLoadBalancerFailed", message)

    async def reconcile(
        self, key: str, *, shares_listing: bool = False, may_change: bool = True
    ) -> ServiceOutcome | None:
        """Make steps until there is nothing to do now; return why, None if there is no such Service.

        With `shares_listing`, many Services wait, and a balancer that was as desired is not read by its id.
        Without `may_change`, it stops before a change that no deletion needs.
        Raises KubeError, and PermanentError if a record is lost: the next attempt reads everything again.
        """
        namespace, _, name = key.partition(".")
        for _ in range(_MAX_STEPS):
            try:
                service = await self.kube.get_service(namespace, name)
            except NotFound:
                self.forget(key)
                return None
            state = self._get_state(key, service)
            _check_record(service, state)
            view = await self._build_view(service, state, shares_listing=shares_listing)
            step = plan_step(view)
            if isinstance(step, Wait):
                self._report_wait(service, state, step)
                return _build_outcome(service, step)
            if self.is_dry_run and not isinstance(step, ListBalancers | ReadBalancer | ReadAnchor):
                log.info(
                    "dry run: step not made",
                    extra=self._log_fields(service) | _describe(step) | _describe_desired(view),
                )
                reason = f"dry run: {type(step).__name__}"
                return ServiceOutcome(uid=service.uid, state="dry-run", reason=reason, until=None)
            if not may_change and isinstance(step, ChangeBalancer) and not step.is_release:
                return _leave_changes(service)
            await self._make(service, state, step)
        return ServiceOutcome(uid=state.uid, state="waiting", reason="other Services first", until=self.now())

    def _get_state(self, key: str, service: KubeService) -> _ServiceState:
        state = self._states.get(key)
        if state is None or state.uid != service.uid:
            state = _ServiceState(uid=service.uid, memory=Memory(led_since=self._term_began_at))
            self._states[key] = state
        return state

    async def _build_view(
        self, service: KubeService, state: _ServiceState, *, shares_listing: bool
    ) -> BalancerView[Any, Any]:
        parsed: ParsedRequest[Any] | Unanswered
        selector, address_types = None, None
        try:
            parsed = self.balancers.read_request(build_request(service))
            selector, address_types = parsed.node_selector, parsed.address_types
            # Names cost requests, and no other plan needs them.
            if is_selected(service, self.account) and not service.metadata.deletion_timestamp:
                parsed = await self.balancers.resolve_names(parsed)
        except Exception as error:
            # A Service contains texts of its owner: a defect that one triggers must not stop its end.
            log.exception("Service not read", extra=self._log_fields(service))
            parsed = Unanswered("malformed", f"a defect ({type(error).__name__}) in reading the Service")
        now = self.now()
        lease_seconds = min(max(0.0, self.leading_until() - self.monotonic()), 3600.0)
        return BalancerView(
            service=service,
            account=self.account,
            anchor=self.anchor(),
            credential=self.balancers.credential,
            owner=self._build_owner(service),
            planner=self.balancers,
            parsed=parsed,
            selection=self.nodes.select(selector, address_types, is_followed=self.is_followed()),
            listing=self.reader.listing,
            lookups=state.lookups,
            anchor_lookups=self.reader.anchor_lookups,
            memory=state.memory,
            lease_until=now + timedelta(seconds=lease_seconds),
            write_seconds=self.balancers.write_deadline_seconds,
            now=now,
            shares_listing=shares_listing and state.settled is not None,
        )

    async def _make(self, service: KubeService, state: _ServiceState, step: Step[Any, Any]) -> None:
        match step:
            case ListBalancers(reads_parts=reads_parts):
                await self.reader.list_balancers(self.cluster_uid, reads_parts=reads_parts)
            case ReadBalancer(balancer_id=balancer_id):
                state.lookups[balancer_id] = await self.reader.read_balancer(balancer_id)
            case ReadAnchor(anchor=anchor):
                await self.reader.read_anchor(anchor)
            case RecordBalancer() | ReleaseService() | WriteStatus():
                await self._write_service(service, step)
                state.memory = remember_confirmed(state.memory, step)
                state.recorded = step.record if isinstance(step, RecordBalancer) else None
                self._finish_write(service, step, None)
            case CreateBalancer() | ChangeBalancer() | DeleteBalancer():
                await self._write_cloud(service, state, step)

    async def _write_service(self, service: KubeService, step: KubeWrite) -> None:
        match step:
            case RecordBalancer(record=record):
                await self.kube.patch_service(
                    service,
                    finalizers=build_finalizers(service),
                    annotations={BALANCER_ANNOTATION: encode_balancer_record(record)},
                )
            case ReleaseService():
                is_needed = step.handed_back or step.left_to
                finalizers = service.metadata.finalizers
                await self.kube.patch_service(
                    service,
                    finalizers=finalizers if is_needed else build_released_finalizers(service),
                    annotations={BALANCER_ANNOTATION: None},
                )
            case WriteStatus(ingress=ingress, condition=condition):
                await self.kube.patch_service_status(
                    service,
                    ingress=None if ingress is None else build_ingress_entries(ingress),
                    conditions=build_conditions(service, condition, self.now()),
                )

    async def _write_cloud(
        self, service: KubeService, state: _ServiceState, step: CloudWrite[Any, Any]
    ) -> None:
        deadline = self.now() + timedelta(seconds=self.balancers.write_deadline_seconds)
        began, before = self.monotonic(), self.balancers.credential.generation
        result = await self._send(service, step)
        after = self.balancers.credential.generation
        if isinstance(step, ChangeBalancer):
            metrics.UPDATE_HOSTS_LATENCY.observe(self.monotonic() - began)
            if not isinstance(result, WriteSuccess):
                metrics.NODE_SYNC_ERRORS.inc()
        state.memory = remember_write(
            state.memory,
            step,
            result,
            deadline=deadline,
            ended_at=self.now(),
            generation=after if before == after else VOID_GENERATION,
        )
        self._finish_write(service, step, result)

    async def _send(self, service: KubeService, step: CloudWrite[Any, Any]) -> WriteResult | NotInCloud:
        match step:
            case CreateBalancer(desired=desired, targets=targets):
                return await self.balancers.create_balancer(desired, targets, self._build_owner(service))
            case ChangeBalancer(balancer_id=balancer_id, change=change):
                return await self.balancers.change_balancer(balancer_id, change)
            case DeleteBalancer(balancer_id=balancer_id, keeps_address=keeps_address):
                return await self.balancers.delete_balancer(balancer_id, keeps_address=keeps_address)

    def _build_owner(self, service: KubeService) -> Owner:
        return Owner(cluster_uid=self.cluster_uid, service_uid=service.uid, account=self.account.name)

    # ---- what operators see

    def _finish_write(
        self,
        service: KubeService,
        step: CloudWrite[Any, Any] | KubeWrite,
        result: WriteResult | NotInCloud | None,
    ) -> None:
        outcome = _name_outcome(result)
        if kind := _WRITE_KINDS.get(type(step)):
            metrics.BALANCER_WRITES.labels(self.account.name, kind, outcome).inc()
        reason = {} if result is None else {"reason": getattr(result, "reason", "")}
        fields = self._log_fields(service) | _describe(step) | {"outcome": outcome} | reason
        log.log(
            logging.INFO if outcome in ("success", "not_found") else logging.WARNING,
            "load balancer step made",
            extra=fields,
        )
        for event in describe_write(step, result):
            self._record(service, event)

    def _report_wait(self, service: KubeService, state: _ServiceState, wait: Wait) -> None:
        for event in describe_wait(wait.reason, state.settled):
            self._record(service, event)
        if isinstance(wait.reason, Settled):
            if state.settled is None or not wait.reason.explain():
                self.event_recorder.forget(service.uid, "SyncLoadBalancerFailed", "UpdateLoadBalancerFailed")
            if not wait.reason.left_out:
                self.event_recorder.forget(service.uid, "LoadBalancerTargetIgnored")
            state.settled = wait.reason
            state.memory = remember_settled(state.memory)

    def _record(self, service: KubeService, event: ServiceEvent) -> None:
        """Record a warning once while it lasts, and what has happened each time."""
        about = ObjectReference(
            kind="Service", name=service.name, namespace=service.metadata.namespace, uid=service.uid
        )
        if event.is_warning:
            self.event_recorder.record_once(about, event.reason, event.message)
        else:
            self.event_recorder.record(
                about, event.reason, event.message, is_warning=False, discriminator=event.message
            )

    def _log_fields(self, service: KubeService) -> dict[str, object]:
        return {"account": self.account.name, "kube_service": service.key}


def _check_record(service: KubeService, state: _ServiceState) -> None:
    """Raise PermanentError if the record is lost: it would be written again and again, without a pause."""
    recorded, state.recorded = state.recorded, None
    if recorded is not None and (reason := explain_lost_record(service, recorded)):
        raise PermanentError(reason)


def _build_outcome(service: KubeService, wait: Wait) -> ServiceOutcome:
    reason = wait.reason
    state: Literal["settled", "waiting", "blocked", "other"] = "waiting"
    if isinstance(reason, NotSelected | OtherAccount):
        state = "other"
    elif reason.condition_reason:
        state = "blocked"
    elif isinstance(reason, Settled):
        state = "settled"
    text = reason.explain() or type(reason).__name__
    return ServiceOutcome(uid=service.uid, state=state, reason=text, until=wait.until)


def _leave_changes(service: KubeService) -> ServiceOutcome:
    """Return the outcome for a worker that only deletes: changes wait for the requests of the minute."""
    return ServiceOutcome(uid=service.uid, state="waiting", reason="changes", until=None, has_changes=True)


def _name_outcome(result: WriteResult | NotInCloud | None) -> str:
    if result is None or isinstance(result, WriteSuccess):
        return "success"
    if isinstance(result, NotInCloud):
        return "not_found"
    return result.kind if isinstance(result, WriteRejection) else "unknown"


def _describe_desired(view: BalancerView[Any, Any]) -> dict[str, object]:
    """Return what all steps would make: a dry run never gets beyond the first one."""
    if isinstance(view.parsed, Unanswered):
        return {}
    return {"desired": str(view.parsed.desired), "targets": len(view.selection.targets)}


def _describe(step: Step[Any, Any]) -> dict[str, object]:
    described: dict[str, object] = {"step": type(step).__name__}
    if isinstance(step, ChangeBalancer):
        described["change"] = str(step.change)
    if isinstance(step, ChangeBalancer | DeleteBalancer):
        described["balancer"] = step.balancer_id
    return described
