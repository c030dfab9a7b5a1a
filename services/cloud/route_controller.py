"""The routes of one account's network: one step after the other, while this process leads."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec

from libs.clouds.balancers import UnknownOutcome, WriteRejection, WriteResult, WriteSuccess
from libs.clouds.instances import Instance, Instances, NotFound, Unanswered
from libs.clouds.routes import Route, Routes, RouteTable
from libs.common.bus.delivery import PermanentError, TemporaryError, backoff_seconds
from libs.common.contract.node import Node, NodeCondition, ObjectMeta
from libs.common.contract.node_patch import build_status_patch
from libs.common.contract.services import RECORDS_NAMESPACE, get_route_record_name
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Conflict, FenceFailed, Forbidden, Invalid
from libs.common.kube.errors import NotFound as NotInKubernetes
from libs.common.kube.event_recorder import EventRecorder
from libs.common.kube.events import node_reference
from libs.common.kube.objects import ConfigMap
from libs.common.observability import metrics
from libs.common.service.leader_elector import LeaderElector
from libs.common.service.service import Dependencies
from services.cloud.balancer_reader import VOID_GENERATION, TermClock
from services.cloud.core.balancers.target_nodes import TargetNodes
from services.cloud.core.judge_round import Query
from services.cloud.core.routes.plan_routes import plan_route_step
from services.cloud.core.routes.route_record import RouteRecord, encode_route_record, read_route_record
from services.cloud.core.routes.route_view import (
    CreateRoute,
    DeleteRoute,
    InstanceListing,
    InstanceLookup,
    ListInstances,
    LookUpInstance,
    ReadRoutes,
    RoutePause,
    RouteStep,
    RouteView,
    SetCondition,
    TableAnswer,
    Wait,
    WriteRecord,
)

log = logging.getLogger(__name__)

_SETTLE_SECONDS: Final = 0.2  # after a change of Nodes: those that join together share a plan
# As k8s.io/cloud-provider.
_FIRST_PAUSE_SECONDS: Final = 5.0
_LONGEST_PAUSE_SECONDS: Final = 300.0
_LONGEST_REQUESTED_SECONDS: Final = 3600.0  # by a Retry-After: a server may send any number
_LONGEST_BUSY_SECONDS: Final = 20.0  # another change of the network takes seconds
_COMPONENT: Final = "route_controller"  # as in k8s.io/cloud-provider
_NEARLY_FULL: Final = 0.8  # of a network's limit
# Rejections that another route would get, too.
_OF_ALL_ROUTES: Final = frozenset({"busy", "limit", "rate_limited", "unauthorized"})
_OF_ONE_NODE: Final = (Conflict, FenceFailed, Forbidden, Invalid, NotInKubernetes)
_LOOKUP_AGE: Final = timedelta(minutes=15)  # longer than any answer counts
_WRITTEN_AGE: Final = timedelta(minutes=1)  # so often at most the condition of another client is replaced
_UNWRITABLE_SECONDS: Final = 60.0  # after a condition that Kubernetes did not accept

AnswerT = TypeVar("AnswerT")


@dataclass(eq=False, kw_only=True)
class RouteController:
    """Reads, plans one step, makes it, and reads again. A network accepts one change at a time."""

    account: str
    kube: KubeApi
    cloud: Instances
    routes: Routes
    nodes: TargetNodes
    is_followed: Callable[[], bool]
    pod_networks: Callable[[], tuple[str, ...]]  # () = not known yet
    leading_until: Callable[[], float]  # monotonic
    event_recorder: EventRecorder
    monotonic: Callable[[], float]
    jitter: Callable[[], float]
    now: TermClock
    is_dry_run: bool

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()
        self._problem = ""
        self._begin_term()

    def _begin_term(self) -> None:
        """Forget everything: another process may have written meanwhile."""
        self.now.restart()
        self._led_since = self.now()
        self._config_map: ConfigMap | None = None
        self._record: RouteRecord | None = None  # None: not read
        self._table: TableAnswer | None = None
        self._listing: InstanceListing | None = None
        self._lookups: dict[str, InstanceLookup] = {}
        self._instance_ids: set[str | None] = set()  # of the Nodes in the last view
        self._pauses: dict[Route, RoutePause] = {}
        self._failures: dict[Route, int] = {}
        # Writes that succeeded, and that the table does not show.
        self._accepted: dict[str, set[Route]] = {"create": set(), "delete": set()}
        self._create_pause: RoutePause | None = None
        self._rejected_creates = 0  # in a row, by a cause that is not one route's
        self._unwritable: dict[str, RoutePause] = {}  # by uid of the Node
        self._written: dict[str, tuple[NodeCondition, datetime]] = {}  # by uid of the Node
        self._is_nearly_full = False

    def on_changed(self) -> None:
        """Plan again soon: Nodes or the pod networks have changed."""
        self._changed.set()

    def on_listed(self, instances: Iterable[Instance], query: Query) -> None:
        """Take the instances from a list that was needed for other reasons."""
        now = self.now()
        self._listing = InstanceListing(
            answer={each.id: each for each in instances},
            began_at=now - (query.answered_at - query.asked_at),
            ended_at=now,
            generation=query.credential.generation,
        )

    def problems(self) -> tuple[str, ...]:
        """Return why routes may be missing, in words for /readyz."""
        unwritable = (each.reason for each in self._unwritable.values())
        problem = self._problem or next(unwritable, "")
        return (f"routes: {problem}",) if problem else ()

    async def run(self) -> None:
        """Record Events until cancelled."""
        try:
            await self.event_recorder.run()
        finally:
            await self.event_recorder.flush()

    async def lead(self) -> None:
        """Make steps until the leadership ends."""
        self._begin_term()
        self._report_comparison()
        failures = 0
        try:
            while True:
                try:
                    await self._make_steps()
                    failures = 0
                except (TemporaryError, PermanentError) as error:
                    failures += 1
                    await self._back_off(failures, error)
        finally:
            self._end_term()

    async def _back_off(self, failures: int, error: Exception) -> None:
        self._record = None  # another client may have changed it
        self._problem = str(error)
        log.warning("routes not updated, will retry", extra=self._fields() | {"error": str(error)})
        await asyncio.sleep(backoff_seconds(failures, self.jitter(), first=_FIRST_PAUSE_SECONDS))

    def _end_term(self) -> None:
        """Report nothing any more: the next leader does."""
        self._problem = ""
        self._unwritable = {}
        metrics.ROUTES_COMPARED.labels(self.account).set(0)
        metrics.UNROUTED_NODES.labels(self.account).set(0)

    async def _make_steps(self) -> None:
        """Make steps until there is nothing to do, and wait for the next change. Raises KubeError."""
        metrics.ROUTE_SYNCS.inc()
        self._changed.clear()
        while True:
            if self._record is None:
                self._record = await self._read_record()
            step = plan_route_step(self._build_view(self._record))
            if isinstance(step, Wait):
                self._report(step)
                await self._wait(step)
                return
            if self.is_dry_run and not isinstance(step, ReadRoutes | ListInstances | LookUpInstance):
                log.info("dry run: step not made", extra=self._fields() | _describe(step))
                await self._wait(Wait(until=self.now() + timedelta(minutes=1)))
                return
            await self._make(step)

    async def _wait(self, wait: Wait) -> None:
        seconds = max(0.0, (wait.until - self.now()).total_seconds())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
                await asyncio.sleep(_SETTLE_SECONDS)

    def _build_view(self, record: RouteRecord) -> RouteView:
        now = self.now()
        self._forget(record, now)
        return RouteView(
            now=now,
            led_since=self._led_since,
            lease_seconds=min(self.leading_until() - self.monotonic(), 3600.0),
            write_seconds=self.routes.write_deadline_seconds,
            generation=self.routes.credential.generation,
            network=f"{self.routes.kind} {self.routes.network}",
            nodes=self.nodes.nodes,
            pod_networks=self.pod_networks(),
            is_complete=self.nodes.is_complete and self.is_followed(),
            parse_provider_id=self.cloud.parse_provider_id,
            can_route=self.routes.can_route,
            find_gateway=self.routes.find_gateway,
            record=record,
            table=self._table,
            listing=self._listing,
            lookups=self._lookups,
            pauses=self._pauses,
            create_pause=self._create_pause,
            unwritable_uids=frozenset(self._unwritable),
            written={uid: condition for uid, (condition, _) in self._written.items()},
        )

    def _forget(self, record: RouteRecord, now: datetime) -> None:
        """Drop what has expired, and what belongs to Nodes and routes that are gone."""
        uids, routes = {each.uid for each in self.nodes.nodes}, {each.route for each in record.entries}
        self._written = {
            uid: each for uid, each in self._written.items() if uid in uids and now - each[1] < _WRITTEN_AGE
        }
        self._unwritable = {
            uid: each for uid, each in self._unwritable.items() if uid in uids and each.until > now
        }
        instance_ids = {self.cloud.parse_provider_id(each.spec.provider_id) for each in self.nodes.nodes}
        left = self._instance_ids - instance_ids  # their servers were found while their Nodes existed
        self._instance_ids = instance_ids
        self._lookups = {
            key: each
            for key, each in self._lookups.items()
            if key not in left and now - each.began_at < _LOOKUP_AGE
        }
        self._failures = {route: count for route, count in self._failures.items() if route in routes}
        self._accepted = {kind: accepted & routes for kind, accepted in self._accepted.items()}
        self._pauses = {route: each for route, each in self._pauses.items() if each.until > now}
        if self._create_pause is not None and self._create_pause.until <= now:
            self._create_pause = None

    # ---- steps

    async def _make(self, step: RouteStep) -> None:
        match step:
            case ReadRoutes():
                answer, times = await self._ask(self.routes.read_routes())
                self._table = TableAnswer(answer=answer, **times)
                if isinstance(answer, RouteTable):
                    created, deleted = self._accepted["create"], self._accepted["delete"]
                    self._accepted = {
                        "create": {each for each in created if not answer.is_complete(each)},
                        "delete": {each for each in deleted if answer.has_part(each)},
                    }
            case ListInstances():
                listed, times = await self._ask(self.cloud.list_instances())
                by_id = listed if isinstance(listed, Unanswered) else {each.id: each for each in listed}
                self._listing = InstanceListing(answer=by_id, **times)
            case LookUpInstance(instance_id=instance_id):
                found, times = await self._ask(self.cloud.get_instance(instance_id))
                self._lookups[instance_id] = InstanceLookup(answer=found, **times)
            case WriteRecord(record=record):
                await self._write_record(record)
            case CreateRoute(route=route):
                self._finish_write("create", route, await self.routes.create_route(route))
            case DeleteRoute(route=route):
                log.info("delete a route", extra=self._fields() | _describe(step))
                self._finish_write("delete", route, await self.routes.delete_route(route))
            case SetCondition(node=node, condition=condition):
                await self._set_condition(node, condition)

    async def _ask(self, request: Awaitable[AnswerT]) -> tuple[AnswerT, dict[str, Any]]:
        before, began_at = self.routes.credential.generation, self.now()
        answer = await request
        after = self.routes.credential.generation
        # The first reading of the credential is part of the first request.
        generation = after if before in (0, after) else VOID_GENERATION
        return answer, {"began_at": began_at, "ended_at": self.now(), "generation": generation}

    async def _read_record(self) -> RouteRecord:
        name = get_route_record_name(self.account)
        if not self.routes.network:  # it is the key
            raise TemporaryError(f"the credential file is unreadable, or names no {self.routes.kind}")
        try:
            self._config_map = await self.kube.get_config_map(RECORDS_NAMESPACE, name)
        except NotInKubernetes:
            self._config_map = ConfigMap(metadata=ObjectMeta(name=name))
        uid = self._config_map.metadata.uid
        record = read_route_record(self._config_map.data.get(self.routes.network, ""), uid)
        if record is None:
            raise PermanentError(
                f"ConfigMap {RECORDS_NAMESPACE}/{name} is unreadable: correct it. If it is deleted, "
                "routes of Nodes that are gone stay in the network"
            )
        return record

    async def _write_record(self, record: RouteRecord) -> None:
        config_map = self._config_map or ConfigMap(
            metadata=ObjectMeta(name=get_route_record_name(self.account))
        )
        try:
            if not config_map.metadata.uid:  # the record contains it
                config_map = await self.kube.create_config_map(RECORDS_NAMESPACE, config_map)
            text = encode_route_record(record, config_map.metadata.uid)
            data = {**config_map.data, self.routes.network: text}
            changed = ConfigMap(metadata=config_map.metadata, data=data)
            self._config_map = await self.kube.update_config_map(RECORDS_NAMESPACE, changed)
        except Conflict as error:
            raise TemporaryError("another client has changed the record of routes") from error
        except ValueError as error:
            raise PermanentError(str(error)) from error
        self._record = record

    def _finish_write(self, kind: str, route: Route, result: WriteResult | NotFound) -> None:
        table = self._table.answer if self._table is not None else None
        exists = isinstance(table, RouteTable) and route in table.routes
        self._table = None
        outcome, reason, retry_seconds = _read_result(result)
        is_accepted = outcome == "success" or (kind == "delete" and outcome == "not_found")
        if is_accepted and route in self._accepted[kind]:
            outcome, reason = "unknown", "the cloud has accepted it, and does not show it"
        elif is_accepted:
            self._accepted[kind].add(route)
        metrics.ROUTE_WRITES.labels(self.account, kind, outcome).inc()
        is_success = outcome in ("success", "not_found")
        log.log(
            logging.INFO if is_success else logging.WARNING,
            "route written",
            extra=self._fields() | {"kind": kind, "route": str(route), "outcome": outcome, "reason": reason},
        )
        if is_success:
            self._failures.pop(route, None)
            self._rejected_creates = 0
        elif kind == "create" and outcome in _OF_ALL_ROUTES and not (exists and outcome == "limit"):
            self._rejected_creates += 1
            longest = _LONGEST_BUSY_SECONDS if outcome == "busy" else _LONGEST_PAUSE_SECONDS
            pause = self._build_pause(self._rejected_creates, retry_seconds, reason, longest)
            self._create_pause = msgspec.structs.replace(pause, is_limit=outcome == "limit")
        else:
            failures = self._failures[route] = self._failures.get(route, 0) + 1
            self._pauses[route] = self._build_pause(failures, retry_seconds, reason)

    def _build_pause(
        self, failures: int, retry_seconds: float, reason: str, longest: float = _LONGEST_PAUSE_SECONDS
    ) -> RoutePause:
        seconds = backoff_seconds(failures, self.jitter(), first=_FIRST_PAUSE_SECONDS, cap=longest)
        seconds = max(seconds, min(retry_seconds, _LONGEST_REQUESTED_SECONDS))
        return RoutePause(until=self.now() + timedelta(seconds=seconds), reason=reason)

    async def _set_condition(self, node: Node, condition: NodeCondition) -> None:
        patch = build_status_patch(node, set_condition=condition, now=self.now())
        try:
            await self.kube.patch_node_status(node.name, patch)
        except _OF_ONE_NODE as error:  # routes of other Nodes do not wait for this one
            reason = f"the condition of Node {node.name} cannot be written: {error}"
            until = self.now() + timedelta(seconds=_UNWRITABLE_SECONDS)
            self._unwritable[node.uid] = RoutePause(until=until, reason=reason)
            log.warning("condition not written, will retry", extra=self._fields() | {"error": str(error)})
            return
        self._written[node.uid] = (condition, self.now())
        if condition.status == "True":
            about = node_reference(node.name, node.uid)
            self.event_recorder.record_once(about, "FailedToCreateRoute", condition.message)

    # ---- what operators see

    def _report(self, wait: Wait) -> None:
        self._problem = wait.problem
        if not wait.problem:
            self._report_comparison()
        metrics.UNROUTED_NODES.labels(self.account).set(wait.blocked)
        table = self._table.answer if self._table is not None else None
        if not isinstance(table, RouteTable):
            return
        count = len(table.routes)
        metrics.NETWORK_ROUTES.labels(self.account, "present").set(count)
        if table.limit is None:
            return
        metrics.NETWORK_ROUTES.labels(self.account, "limit").set(table.limit)
        is_nearly_full = count >= table.limit * _NEARLY_FULL
        if is_nearly_full and not self._is_nearly_full:
            log.warning("network nearly full", extra=self._fields() | {"routes": count, "limit": table.limit})
        self._is_nearly_full = is_nearly_full

    def _report_comparison(self) -> None:
        if not self.is_dry_run:  # it stops at the first change, which is no reason for an alert
            metrics.ROUTES_COMPARED.labels(self.account).set(self.now().timestamp())

    def _fields(self) -> dict[str, object]:
        return {"account": self.account, "network": self.routes.network}


def build_route_controller(
    dependencies: Dependencies,
    account: str,
    *,
    elector: LeaderElector,
    clients: tuple[Instances, Routes],
    nodes: TargetNodes,
    is_followed: Callable[[], bool],
    pod_networks: Callable[[], tuple[str, ...]],
    is_dry_run: bool,
) -> RouteController:
    """Return the controller of one account."""
    kube = dependencies.require_kube()
    return RouteController(
        account=account,
        kube=kube,
        cloud=clients[0],
        routes=clients[1],
        nodes=nodes,
        is_followed=is_followed,
        pod_networks=pod_networks,
        leading_until=lambda: elector.leading_until,
        event_recorder=EventRecorder(
            kube, component=_COMPONENT, now=dependencies.now, observe_only=is_dry_run
        ),
        monotonic=dependencies.monotonic,
        jitter=dependencies.random.random,
        now=TermClock(dependencies.now, dependencies.monotonic),
        is_dry_run=is_dry_run,
    )


def _read_result(result: WriteResult | NotFound) -> tuple[str, str, float]:
    """Return the outcome for the metric, the reason, and the seconds that the cloud asks to wait."""
    match result:
        case WriteSuccess():
            return "success", "", 0.0
        case NotFound():
            return "not_found", "", 0.0
        case WriteRejection(kind=kind, reason=reason, retry_after_seconds=seconds):
            return kind, f"the cloud rejects it: {reason}", seconds or 0.0
        case UnknownOutcome(reason=reason):
            return "unknown", f"its result is unknown: {reason}", 0.0


def _describe(step: RouteStep) -> dict[str, object]:
    described: dict[str, object] = {"step": type(step).__name__}
    match step:
        case CreateRoute(route=route, node=node):
            described |= {"route": str(route), "node": node}
        case DeleteRoute(route=route, reason=reason):
            described |= {"route": str(route), "reason": reason}
        case SetCondition(node=node, condition=condition):
            described |= {"node": node.name, "condition": condition.reason}
        case WriteRecord(record=record):
            described |= {"entries": len(record.entries)}
    return described
