"""The state of services, leader, consumers and certificates. Pure."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Final, Literal

import msgspec

from cli.cluster.installation import get_flow_order
from cli.cluster.kube_objects import COMPONENT
from cli.cluster.lease_state import LeaseState
from cli.cluster.pods import Pod
from cli.cluster.snapshot import ClusterSnapshot
from cli.cluster.unavailable import Unavailable
from cli.inside.flow_snapshot import ConsumerSnapshot, FlowSnapshot, ServicePresence
from libs.common.contract.services import DEFAULT_SERVICES, METADATA, WATCHER

ComponentState = Literal["well", "wrong", "unknown", "absent"]
ALL_IN_ONE: Final = "all-in-one"
_NATS: Final = "nats"
_NEEDED: Final = (WATCHER.service, METADATA.service)  # in every profile
_DEFAULT: Final = frozenset(wiring.service for wiring in DEFAULT_SERVICES)
_STALLED_SECONDS: Final = 60.0


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a service, by its pods if they could be listed, and by its messages."""

    name: str
    state: ComponentState
    ready: int | None = None  # None: pods are unknown; the same for the other counts
    pods: int | None = None
    restarts: int | None = None
    text: str = ""


class LeaderStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The leading watcher, by its Lease and by its heartbeats."""

    holder: str | None = None
    state: ComponentState
    lease_seconds: float | None = None  # since the last renewal
    heartbeat_seconds: float | None = None  # since the last heartbeat on NATS
    text: str = ""


class ConsumerStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of a durable consumer."""

    name: str
    service: str
    state: ComponentState
    pending: int
    unacknowledged: int
    redelivered: int
    idle_seconds: float | None = None  # since the last delivery or acknowledgement
    text: str = ""


class CertificateStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A certificate and its state: wrong if it should have been renewed by now."""

    name: str
    expires_at: datetime
    state: ComponentState


def list_service_statuses(snapshot: ClusterSnapshot) -> tuple[ServiceStatus, ...]:
    """Return the services in the order of the flow. Only pods show which services are installed."""
    flow = snapshot.flow_snapshot
    seen = {one.service: one for one in (flow.services if flow else ())}
    if isinstance(snapshot.pods, Unavailable) or not snapshot.pods:
        return tuple(map(_status_from_messages, seen.values()))
    by_component: dict[str, list[Pod]] = {}
    for pod in snapshot.pods:
        if not pod.is_terminated:
            component = pod.metadata.labels.get(COMPONENT, ALL_IN_ONE)
            by_component.setdefault(component, []).append(pod)
    if ALL_IN_ONE not in by_component:
        by_component |= {name: [] for name in _NEEDED if name not in by_component}
    names = sorted(by_component, key=lambda name: (name != _NATS, get_flow_order(name)))
    return tuple(_status_from_pods(name, by_component[name], seen.get(name)) for name in names)


def _status_from_pods(name: str, pods: Sequence[Pod], seen: ServicePresence | None) -> ServiceStatus:
    if not pods:
        why = "no pod exists; without it, no other service receives events"
        return ServiceStatus(name=name, state="wrong", ready=0, pods=0, restarts=0, text=why)
    unready = [f"{pod.name} {pod.why_not_ready}" for pod in pods if not pod.is_ready]
    text = unready[0] + (f", and {len(unready) - 1} more" if len(unready) > 1 else "") if unready else ""
    # A silent watcher may be a standby; the leader status reports a missing leader.
    silent = seen is not None and seen.is_present is False and not unready and name != WATCHER.service
    return ServiceStatus(
        name=name,
        state="wrong" if unready or silent else "well",
        ready=len(pods) - len(unready),
        pods=len(pods),
        restarts=sum(pod.restart_count for pod in pods),
        text=text or (seen.why if seen and seen.is_present is not None else ""),
    )


def _status_from_messages(seen: ServicePresence) -> ServiceStatus:
    if seen.is_present is None:
        return ServiceStatus(name=seen.service, state="unknown", text=seen.why)
    # Only pods show whether a service is installed. A silent default service counts as missing.
    if seen.is_present or seen.service in _DEFAULT:
        state: ComponentState = "well" if seen.is_present else "wrong"
        return ServiceStatus(name=seen.service, state=state, text=seen.why)
    text = f"{seen.why}: it is not running or not installed"
    return ServiceStatus(name=seen.service, state="absent", text=text)


def get_leader_status(snapshot: ClusterSnapshot) -> LeaderStatus:
    """Return the leader status.

    Without a heartbeat on NATS, it compares the clock of the Lease holder with the clock of the snapshot.
    """
    flow, lease = snapshot.flow_snapshot, snapshot.lease
    heartbeat_seconds = flow.leader_heartbeat_seconds if flow else None
    if isinstance(lease, Unavailable):
        if flow is None:
            return LeaderStatus(state="unknown", text=lease.reason)
        if flow.leader is None:
            return LeaderStatus(state="wrong", text="no leader heartbeat")
        return LeaderStatus(state="well", holder=flow.leader.holder, heartbeat_seconds=heartbeat_seconds)
    if not lease.holder:
        return LeaderStatus(state="wrong", text="the Lease has no holder")
    text = _why_not_leading(lease, snapshot.at, flow)
    return LeaderStatus(
        state="wrong" if text else "well",
        holder=lease.holder,
        lease_seconds=lease.seconds_since_renewal(snapshot.at),
        heartbeat_seconds=heartbeat_seconds,
        text=text,
    )


def _why_not_leading(lease: LeaseState, at: datetime, flow: FlowSnapshot | None) -> str:
    if flow is not None and flow.leader is not None:
        # a heartbeat expires by the clock of NATS: its presence proves more than a comparison of two clocks
        return ""
    if not lease.is_held(at):
        return "the Lease has expired, so no watcher leads"
    return "it holds the Lease but publishes no leader heartbeat" if flow is not None else ""


def list_consumer_statuses(flow: FlowSnapshot, installed: AbstractSet[str]) -> Iterator[ConsumerStatus]:
    """Yield the state of each consumer, except those of optional services that are not installed.

    A consumer is wrong if messages are pending and no client pulls, or if nothing has moved for a minute. A
    consumer of a service that is not installed is absent, although all messages are pending. A default
    service whose consumer has delivered messages before is missing instead.
    """
    for queue in flow.queues:
        if queue.service not in installed | _DEFAULT:
            continue
        moved = [at for at in (queue.delivered_at, queue.acknowledged_at) if at]
        idle = (flow.at - max(moved)).total_seconds() if moved else None
        text = _why_stalled(queue, idle)
        state: ComponentState = "wrong" if text else "well"
        if queue.exists and queue.service not in installed:
            state, text = _judge_absent(queue)
        yield ConsumerStatus(
            name=queue.name,
            service=queue.service,
            state=state,
            pending=queue.pending,
            unacknowledged=queue.unacknowledged,
            redelivered=queue.redelivered,
            idle_seconds=idle,
            text=text,
        )


def _judge_absent(queue: ConsumerSnapshot) -> tuple[ComponentState, str]:
    if queue.service in _DEFAULT and queue.pending and queue.delivered_at is not None:
        return "wrong", f"{queue.service} used this consumer before and is not running"
    return "absent", f"{queue.service} is not running"


def _why_stalled(queue: ConsumerSnapshot, idle: float | None) -> str:
    if not queue.exists:
        return "it does not exist; the watcher creates it"
    if not queue.pending:
        return ""
    if not queue.waiting and not queue.unacknowledged:
        return "no client pulls from it"
    return "no progress for a minute" if idle is not None and idle > _STALLED_SECONDS else ""
