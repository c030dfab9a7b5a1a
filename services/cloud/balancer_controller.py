"""The load balancers of one account: leads by a Lease, and reconciles Services in parallel."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from libs.clouds.balancers import Balancers
from libs.clouds.instances import Instances, Unanswered
from libs.common.bus.delivery import RETRY_FIRST_SECONDS, PermanentError, TemporaryError, backoff_seconds
from libs.common.contract.instances import InstanceAnchor
from libs.common.contract.kube_service import KubeService
from libs.common.contract.services import LEASE_NAMESPACE
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Conflict, KubeError
from libs.common.kube.event_recorder import EventRecorder
from libs.common.observability import metrics
from libs.common.service.leader_elector import LeaderElector
from libs.common.service.service import Dependencies, run_every, run_together
from libs.common.service.waiting_objects import NameQueue, WaitingObject, WaitingObjects
from services.cloud.balancer_reader import BalancerReader, TermClock
from services.cloud.core.balancers.balancer_answers import ANSWER_AGE, PART_AGE
from services.cloud.core.balancers.balancer_record import BalancerAccount, is_selected
from services.cloud.core.balancers.target_nodes import TargetNodes
from services.cloud.service_reconciler import ServiceOutcome, ServiceReconciler
from services.cloud.settings import CloudSettings

log = logging.getLogger(__name__)

CONCURRENT_SERVICES: Final = 8
# As k8s.io/cloud-provider.
_RETRY_FIRST_SECONDS: Final = 5.0
_RETRY_CAP_SECONDS: Final = 300.0
_TICK_SECONDS: Final = 0.5
# While a worker waits for the end of a write, it keeps its Service from the worker that ends its double.
_SLOW_SECONDS: Final = 10.0
_BUSY_LISTING_AGE: Final = timedelta(seconds=20)
_ORPHAN_AGE: Final = timedelta(minutes=10)
_COMPONENT: Final = "service-controller"  # as in k8s.io/cloud-provider
_STATES: Final = ("settled", "waiting", "blocked", "dry-run")


@dataclass(eq=False, kw_only=True)
class BalancerController:
    """Knows which Services changed, and reconciles each of them by one worker at a time."""

    account: BalancerAccount
    kube: KubeApi
    elector: LeaderElector
    reconciler: ServiceReconciler
    reader: BalancerReader
    event_recorder: EventRecorder
    are_services_known: Callable[[], bool]  # whether the watcher has published all Services
    monotonic: Callable[[], float]
    jitter: Callable[[], float]

    def __post_init__(self) -> None:
        self._services: dict[str, KubeService] = {}  # of all accounts and controllers
        self._queue = NameQueue()
        self._urgent = NameQueue()  # with workers of their own, which no change of targets keeps busy
        self._superfluous: frozenset[str] = frozenset()  # uids of Services with a listed balancer too many
        self._waiting: WaitingObjects[WaitingObject] = WaitingObjects()
        self.outcomes: dict[str, ServiceOutcome] = {}
        self._failures: dict[str, int] = {}
        self._busy: dict[str, float] = {}  # since when a worker has each
        self._again: set[str] = set()  # changed while a worker had them
        self._sharing: set[str] = set()  # many that changed at the same time, until each is settled
        self._generation = 0  # of the credential
        self._nodes_changed_at: float | None = None
        self._failure = ""

    # ---- messages

    def on_service(self, service: KubeService) -> None:
        """Reconcile the Service soon, if it is of interest."""
        self._services[service.key] = service
        if self._is_ours(service):
            self._enqueue(service.key)

    def on_service_gone(self, key: str) -> None:
        """Look at the Service: that it is missing in a message proves nothing."""
        service = self._services.pop(key, None)
        if service is not None and self._is_ours(service):
            self._enqueue(key)

    def on_nodes_changed(self) -> None:
        """Reconcile all Services: their targets may have changed."""
        if self._nodes_changed_at is None:
            self._nodes_changed_at = self.monotonic()
        self._enqueue_all()

    def clear(self) -> None:
        """Forget all Services: of another stream. The API server has them."""
        self._services.clear()

    @property
    def is_idle(self) -> bool:
        """Whether no Service is reconciled, and none is due."""
        return not (self._queue or self._urgent or self._busy or self._waiting.find_due(self.monotonic()))

    def problems(self) -> tuple[str, ...]:
        """Return why no load balancer can be reconciled, in words for /readyz."""
        return (f"load balancers: {self._failure}",) if self._failure else ()

    # ---- the work of the leader

    async def run(self) -> None:
        """Record Events until cancelled."""
        try:
            await self.event_recorder.run()
        finally:
            await self.event_recorder.flush()

    async def lead(self) -> None:
        """Reconcile Services until the leadership ends."""
        namespace = await self._read_cluster_namespace()
        self.reconciler.begin_term(namespace)
        self._busy.clear()
        self._again.clear()
        self._sharing.clear()
        self._failures.clear()
        self._enqueue_all()
        urgent_work = partial(self._work, is_urgent=True)
        kinds = ((self._queue, self._work), (self._urgent, urgent_work)) * CONCURRENT_SERVICES
        workers = (queue.work(work) for queue, work in kinds)
        try:
            await run_together(*workers, run_every(_TICK_SECONDS, self._tick), self._list_periodically())
        finally:
            self._end_term()

    def _end_term(self) -> None:
        """Report nothing any more: the next leader does."""
        self.outcomes.clear()
        self._report_states()
        metrics.BALANCER_ORPHANS.labels(self.account.name).set(0)

    async def _list_periodically(self) -> None:
        """List each minute, also while all workers wait for the budget: a double costs money meanwhile.

        Without a Service, list less often: to find balancers without one.
        """
        led_since = self.reconciler.now()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            listing, now = self.reader.listing, self.reconciler.now()
            age = _BUSY_LISTING_AGE if self._is_slow() else ANSWER_AGE
            if self.outcomes and listing is not None and now >= listing.find_end(age):
                reads_parts = now - listing.parts_began_at >= PART_AGE
                await self.reader.list_balancers(self.reconciler.cluster_uid, reads_parts=reads_parts)
            elif now >= (led_since if listing is None else listing.ended_at) + _ORPHAN_AGE:
                await self.reader.list_balancers(self.reconciler.cluster_uid)

    def _is_slow(self) -> bool:
        """Whether a worker has waited for a while, for the budget or for the cloud."""
        return min(self._busy.values(), default=math.inf) <= self.monotonic() - _SLOW_SECONDS

    async def _read_cluster_namespace(self) -> str:
        """Return the uid of the cluster, which is part of each balancer's tags."""
        attempt = 0
        while True:
            try:
                uid = (await self.kube.get_namespace(LEASE_NAMESPACE)).uid
            except KubeError as error:
                attempt += 1
                self._failure = f"the uid of the cluster is unknown: {error}"
                log.warning("cannot read the cluster's uid, will retry", extra={"error": str(error)})
                await asyncio.sleep(backoff_seconds(attempt, self.jitter()))
                continue
            self._failure = ""
            return uid

    async def _work(self, key: str, *, is_urgent: bool = False) -> None:
        if key in self._busy:
            self._again.add(key)
            return
        self._busy[key] = self.monotonic()
        try:
            await self._reconcile(key, is_urgent=is_urgent)
        finally:
            self._busy.pop(key, None)
        if key in self._again:
            self._again.discard(key)
            self._add([key])

    async def _reconcile(self, key: str, *, is_urgent: bool) -> None:
        self._waiting.remove(key)
        metrics.LOAD_BALANCER_SYNCS.inc()
        shares_listing = key in self._sharing and not self._is_urgent(key)
        try:
            outcome = await self.reconciler.reconcile(
                key, shares_listing=shares_listing, may_change=not is_urgent
            )
        except (TemporaryError, PermanentError) as error:
            log.warning("reconcile failed, will retry", extra=self._log_fields(key) | {"error": str(error)})
            if isinstance(error, PermanentError):
                self.reconciler.report_rejection(key, str(error))
            self._retry(key, str(error), is_conflict=isinstance(error, Conflict))
        except Exception as error:
            # A Service contains texts of its owner: a defect that one triggers must not stop the others.
            log.exception("reconcile failed", extra=self._log_fields(key))
            self._retry(key, f"defect: {type(error).__name__}")
        else:
            self._failures.pop(key, None)
            if outcome is None or not outcome.has_changes:
                self._finish(key, outcome)
            else:
                self._again.discard(key)  # or an urgent worker would get it first, again and again
                self._queue.add([key])

    def _finish(self, key: str, outcome: ServiceOutcome | None) -> None:
        before = self.outcomes.pop(key, None)
        if outcome is None or outcome.state != "waiting":
            self._sharing.discard(key)
        if outcome is None:
            return
        self.outcomes[key] = outcome
        if before is None or (before.state, before.reason) != (outcome.state, outcome.reason):
            fields = {"state": outcome.state, "reason": outcome.reason}
            log.info("load balancer reconciled", extra=self._log_fields(key) | fields)
        if outcome.until is not None:
            seconds = (outcome.until - self.reconciler.now()).total_seconds()
            self._wait(key, outcome.uid, outcome.reason, max(0.0, seconds))

    def _retry(self, key: str, reason: str, *, is_conflict: bool = False) -> None:
        service = self._services.get(key)
        uid = "" if service is None else service.uid
        self.outcomes[key] = ServiceOutcome(uid=uid, state="waiting", reason=reason, until=None)
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        first = RETRY_FIRST_SECONDS if is_conflict else _RETRY_FIRST_SECONDS
        seconds = backoff_seconds(failures, self.jitter(), first=first, cap=_RETRY_CAP_SECONDS)
        self._wait(key, "", reason, seconds)

    def _wait(self, key: str, uid: str, reason: str, seconds: float) -> None:
        now = self.monotonic()
        self._waiting.add(WaitingObject(name=key, uid=uid, reason=reason, retry_at=now + seconds), now)

    def _tick(self) -> None:
        self._find_superfluous()
        self._add(each.name for each in self._waiting.find_due(self.monotonic()))
        generation = self.reader.balancers.credential.generation
        if generation != self._generation:
            self._generation = generation
            self._enqueue_all()
        if self._nodes_changed_at is not None and self.is_idle:
            metrics.NODE_SYNC_LATENCY.observe(self.monotonic() - self._nodes_changed_at)
            self._nodes_changed_at = None
        self._report_states()
        if self.are_services_known():
            self.reader.report_orphans(frozenset(each.uid for each in self._services.values()))

    def _report_states(self) -> None:
        states = Counter(each.state for each in self.outcomes.values())
        for state in _STATES:
            metrics.BALANCERS.labels(self.account.name, state).set(states[state])

    # ---- which Services

    def _is_ours(self, service: KubeService) -> bool:
        """Whether the account has to look at the Service. The core decides what it does with it."""
        is_told = service.blocked_condition is not None
        return is_selected(service, self.account) or service.has_finalizer or is_told

    def _enqueue(self, key: str) -> None:
        if self.elector.leading_since() is not None:
            self._add([key])

    def _enqueue_all(self) -> None:
        if self.elector.leading_since() is not None:
            ours = [key for key, service in self._services.items() if self._is_ours(service)]
            keys = dict.fromkeys([*ours, *self.outcomes])
            if len(keys) >= CONCURRENT_SERVICES:
                self._sharing.update(keys)
            self._add(keys)

    def _add(self, keys: Iterable[str]) -> None:
        for key in keys:
            (self._urgent if self._is_urgent(key) else self._queue).add([key])

    def _is_urgent(self, key: str) -> bool:
        """Whether a paid object is to be deleted."""
        service = self._services.get(key)
        if service is None:
            return False
        return self._is_ending(service) or service.uid in self._superfluous

    def _is_ending(self, service: KubeService) -> bool:
        return bool(service.metadata.deletion_timestamp) or not is_selected(service, self.account)

    def _find_superfluous(self) -> None:
        """Reconcile a Service as soon as a double is listed, or any balancer although the Service ends.

        The record of the latter may name another account, so nothing else leads to that balancer.
        """
        counts = self.reader.count_owned()
        found = {
            service.uid: key
            for key, service in self._services.items()
            if counts[service.uid] > (0 if self._is_ending(service) else 1)
        }
        self._add(key for uid, key in found.items() if uid not in self._superfluous)
        self._superfluous = frozenset(found)

    def _log_fields(self, key: str) -> dict[str, object]:
        return {"account": self.account.name, "kube_service": key}


def build_balancer_controller(
    dependencies: Dependencies,
    settings: CloudSettings,
    account: BalancerAccount,
    *,
    elector: LeaderElector,
    cloud: Instances,
    balancers: Balancers[Any, Any],
    nodes: TargetNodes,
    anchor: Callable[[], InstanceAnchor | Unanswered | None],
    is_followed: Callable[[], bool],
    are_services_known: Callable[[], bool],
) -> BalancerController:
    """Return the controller of one account."""
    kube = dependencies.require_kube()
    clock = TermClock(dependencies.now, dependencies.monotonic)
    reader = BalancerReader(account=account.name, balancers=balancers, cloud=cloud, now=clock)
    event_recorder = EventRecorder(
        kube, component=_COMPONENT, now=dependencies.now, observe_only=settings.is_balancer_dry_run
    )
    reconciler = ServiceReconciler(
        account=account,
        kube=kube,
        reader=reader,
        balancers=balancers,
        nodes=nodes,
        is_followed=is_followed,
        anchor=anchor,
        leading_until=lambda: elector.leading_until,
        event_recorder=event_recorder,
        monotonic=dependencies.monotonic,
        now=clock,
        is_dry_run=settings.is_balancer_dry_run,
    )
    return BalancerController(
        account=account,
        kube=kube,
        elector=elector,
        reconciler=reconciler,
        reader=reader,
        event_recorder=event_recorder,
        are_services_known=are_services_known,
        monotonic=dependencies.monotonic,
        jitter=dependencies.random.random,
    )
