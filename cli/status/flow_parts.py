"""Services, leader, queues and certificates: how each stands. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from cli.inside.seen import CertificateSeen, FlowSeen, QueueSeen, ServiceSeen
from cli.status.flow_seen import Evidence, LeaseSeen, Untold
from libs.common.kube_api.pods import Pod
from libs.common.service_spec import DEFAULT_SERVICES, METADATA, SERVICES, WATCHER

State = Literal["well", "wrong", "unknown", "absent"]
COMPONENT: Final = "app.kubernetes.io/component"
ALL_IN_ONE: Final = "all-in-one"
_ORDER: Final = ("nats", *(wiring.service for wiring in SERVICES), ALL_IN_ONE)
_NEEDED: Final = (WATCHER.service, METADATA.service)  # in every profile
_DEFAULT: Final = frozenset(wiring.service for wiring in DEFAULT_SERVICES)
_STALLED_SECONDS: Final = 60.0
_RENEWED_BEFORE: Final = {
    "nats-server": timedelta(days=90),
    "nats-authority": timedelta(days=365),
    "talos": timedelta(minutes=30),
}


class ServiceStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A service, by its pods where they could be listed, and by what its messages tell."""

    name: str
    state: State
    ready: int | None = None  # None: pods are not known
    pods: int | None = None
    restarts: int = 0
    text: str = ""


class LeaderStanding(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads the watchers, by the Lease and by their own word."""

    state: State
    holder: str = ""
    lease_seconds: float | None = None  # since it was renewed
    word_seconds: float | None = None  # since they said so on NATS
    text: str = ""


class QueueStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A durable."""

    queue: QueueSeen
    state: State
    idle_seconds: float | None = None  # since something was delivered or acknowledged
    text: str = ""


def services_standing(evidence: Evidence) -> tuple[ServiceStanding, ...]:
    """In the order of the flow. Which services are installed, only pods tell."""
    seen = {one.service: one for one in (evidence.flow_seen.services if evidence.flow_seen else ())}
    if isinstance(evidence.pods, Untold) or not evidence.pods:
        return tuple(_by_words(one) for one in seen.values())
    by_component: dict[str, list[Pod]] = {}
    for pod in evidence.pods:
        if not pod.is_terminated:
            component = pod.metadata.labels.get(COMPONENT, ALL_IN_ONE).removesuffix("-single")
            by_component.setdefault(component, []).append(pod)  # NATS' only server is a Deployment's
    if ALL_IN_ONE not in by_component:
        by_component |= {name: [] for name in _NEEDED if name not in by_component}
    names = sorted(by_component, key=lambda name: (_ORDER.index(name) if name in _ORDER else -1, name))
    return tuple(_by_pods(name, by_component[name], seen.get(name)) for name in names)


def _by_pods(name: str, pods: Sequence[Pod], seen: ServiceSeen | None) -> ServiceStanding:
    if not pods:
        why = "there is no pod of it, and without it no other service hears anything"
        return ServiceStanding(name=name, state="wrong", ready=0, pods=0, text=why)
    ready = sum(pod.is_ready for pod in pods)
    unready = [f"{pod.name} {pod.why_not_ready}" for pod in pods if not pod.is_ready]
    text = unready[0] + (f", and {len(unready) - 1} more" if len(unready) > 1 else "") if unready else ""
    # A watcher that is silent need not lead; that nobody does is told of the leader.
    silent = seen is not None and seen.here is False and not unready and name != WATCHER.service
    return ServiceStanding(
        name=name,
        state="wrong" if unready or silent else "well",
        ready=ready,
        pods=len(pods),
        restarts=sum(pod.restart_count for pod in pods),
        text=text or (seen.why if seen and seen.here is not None else ""),
    )


def _by_words(seen: ServiceSeen) -> ServiceStanding:
    if seen.here is None:
        return ServiceStanding(name=seen.service, state="unknown", text=seen.why)
    if seen.here:
        return ServiceStanding(name=seen.service, state="well", text=seen.why)
    # Whether it is installed at all, only pods would tell; what runs by default is missed.
    missed = seen.service in _DEFAULT
    text = seen.why if missed else f"{seen.why}: it is not there, or not installed"
    return ServiceStanding(name=seen.service, state="wrong" if missed else "absent", text=text)


def leader_standing(evidence: Evidence) -> LeaderStanding:
    """Without a word on NATS, clocks of the holder and of whoever asks are compared."""
    flow, lease = evidence.flow_seen, evidence.lease
    spoken = flow.leading_seconds if flow else None
    if isinstance(lease, Untold):
        if flow is None:
            return LeaderStanding(state="unknown", text=lease.reason)
        if flow.leader is None:
            return LeaderStanding(state="wrong", text="nobody says that they lead")
        return LeaderStanding(state="well", holder=flow.leader.holder, word_seconds=spoken)
    if lease is None or not lease.holder:
        return LeaderStanding(state="wrong", text="nobody holds the Lease")
    seconds = (evidence.at - lease.renewed_at).total_seconds() if lease.renewed_at else None
    text = _why_not_leading(lease, seconds, flow)
    return LeaderStanding(
        state="wrong" if text else "well",
        holder=lease.holder,
        lease_seconds=seconds,
        word_seconds=spoken,
        text=text,
    )


def _why_not_leading(lease: LeaseSeen, seconds: float | None, flow: FlowSeen | None) -> str:
    if flow is not None and flow.leader is not None:
        return ""  # their word expires by the clock of NATS: that it is there says more than two clocks do
    if seconds is None or seconds > lease.duration_seconds:
        return "its Lease has expired: nobody leads"
    if flow is not None:
        return "it holds the Lease and says nothing to NATS"
    return ""


def queues_standing(flow: FlowSeen, installed: AbstractSet[str]) -> Iterator[QueueStanding]:
    """A queue is wrong where something is due and nobody takes it, or nothing has moved for a minute.

    Of a service that is not installed nothing is due, though all of it is pending; one that runs by default
    and has taken something before is missed.
    """
    for queue in flow.queues:
        moved = [at for at in (queue.delivered_at, queue.acknowledged_at) if at]
        idle = (flow.at - max(moved)).total_seconds() if moved else None
        text = _why_stalled(queue, idle)
        state: State = "wrong" if text else "well"
        if queue.exists and queue.service not in installed:
            state, text = _of_absent(queue)
        yield QueueStanding(queue=queue, state=state, idle_seconds=idle, text=text)


def _of_absent(queue: QueueSeen) -> tuple[State, str]:
    if queue.service in _DEFAULT and queue.pending and queue.delivered_at is not None:
        return "wrong", f"{queue.service} has taken from it before, and is not there"
    return "absent", f"{queue.service} is not there"


def _why_stalled(queue: QueueSeen, idle: float | None) -> str:
    if not queue.exists:
        return "it does not exist: the watcher makes it anew"
    if not queue.pending:
        return ""
    if not queue.waiting and not queue.unacknowledged:
        return "nobody takes from it"
    if idle is not None and idle > _STALLED_SECONDS:
        return "nothing of it has moved"
    return ""


class CertificateStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate, and until when it is good; wrong where it should have been renewed by now."""

    certificate: CertificateSeen
    state: State


def certificates_standing(
    certificates: Iterable[CertificateSeen], at: datetime
) -> Iterator[CertificateStanding]:
    """By the times at which the alerts speak of them."""
    for one in certificates:
        renewed = at + _RENEWED_BEFORE.get(one.name, timedelta()) < one.expires_at
        yield CertificateStanding(certificate=one, state="well" if renewed else "wrong")
