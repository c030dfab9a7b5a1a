"""How each service is, by the messages and consumers of the stream. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from libs.common.bus.protocol import ConsumerStats
from libs.common.contract.events import PULSE_TTL_SECONDS, Leading, Pulse
from libs.common.contract.services import CONTROLLER_SERVICES, CSR, LABELER, METADATA, WATCHER
from services.console.core.cloud_rows import AccountRow
from services.console.core.node_record import seconds_of

Health = Literal["ok", "busy", "warning", "bad", "off"]
_MAX_HEARTBEAT_SECONDS: Final = 10.0
LATE_SECONDS: Final = 15.0
_SILENT_ACCOUNT_SECONDS: Final = 100.0  # an account reports every half minute


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One service: its health in a word and in a sentence, what waits for it, and its errors."""

    service: str
    health: Health
    text: str
    lag: int = 0  # messages that it has not received, or not acknowledged; of metadata, not answered
    lag_since: float = 0.0  # publication of the oldest of them, in seconds since 1970
    errors: Mapping[str, int] = {}  # cause -> number in the last five minutes
    leader: str = ""
    trouble: str = ""  # what needs attention; "" if nothing
    details: str = ""  # what its processes report


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that wait for a service."""

    count: int = 0
    oldest: float = 0.0


class FlowState(msgspec.Struct, frozen=True, kw_only=True):
    """What the overview follows from."""

    now: float
    leading: Leading | None
    heartbeat_seconds: float | None  # age of the last live heartbeat
    consumers: Mapping[str, ConsumerStats]  # by service
    backlogs: Mapping[str, Backlog]  # by service
    dead_letters: Mapping[str, int]  # by service
    pulses: tuple[Pulse, ...]  # of all running processes
    recent_errors: Mapping[str, Mapping[str, int]]  # service -> cause -> number
    seconds: float  # since the console follows the stream
    unreachable: int  # Nodes whose machines do not answer
    blocked: int
    denied: int
    accounts: tuple[AccountRow, ...]


def list_service_statuses(flow: FlowState) -> tuple[ServiceStatus, ...]:
    """Return the status of each service, in the order of the flow, and of each cloud account."""
    statuses = (
        _judge_watcher(flow),
        _judge_metadata(flow),
        *(
            _judge_consumer(flow, spec.service) if spec.durables else _judge_follower(flow, spec.service)
            for spec in CONTROLLER_SERVICES
        ),
        *_list_accounts(flow),
    )
    return tuple(_apply_pulses(flow, status) for status in statuses)


def _apply_pulses(flow: FlowState, status: ServiceStatus) -> ServiceStatus:
    """Return the status with the number of processes, and with what they report.

    One process that is ready is enough: the others stand by, or start.
    """
    own = [pulse for pulse in flow.pulses if pulse.service == status.service]
    unready = [pulse for pulse in own if pulse.problems]
    times = [seconds_of(pulse.oldest_at) for pulse in own if pulse.oldest_at is not None]
    behind = Backlog(count=max((pulse.lag for pulse in own), default=0), oldest=min(times, default=0.0))
    backlog = max(flow.backlogs.get(status.service, behind), behind, key=lambda each: each.count)
    status = replace(
        status,
        lag=backlog.count,
        lag_since=backlog.oldest,
        errors=flow.recent_errors.get(status.service, {}),
    )
    problem = f"{len(unready)} of {len(own)} not ready: {unready[0].problems[0]}" if unready else ""
    if own and len(unready) == len(own):
        status = replace(status, health="bad", text=f"not ready: {unready[0].problems[0]}")
    leader = next((pulse.instance for pulse in own if pulse.is_leading), status.leader)
    details = (
        count_of(len(own), "process", "processes") if own else "",
        problem,
        f"leader {leader}" if leader else "",
        f"{count_of(status.lag, 'message')} waiting" if status.lag else "",
    )
    trouble = (
        status.text if status.health in ("bad", "warning") else "",
        problem if status.health != "bad" else "",
        describe_errors(status),
    )
    return replace(status, trouble=". ".join(filter(None, trouble)), details="; ".join(filter(None, details)))


def count_of(number: int, one: str, many: str = "") -> str:
    """Return the number with its noun."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def describe_errors(status: ServiceStatus) -> str:
    """Return the errors of the last five minutes; "" without any."""
    causes = ", ".join(f"{cause} {count:,}" for cause, count in status.errors.items())
    return f"Errors in the last five minutes: {causes}" if causes else ""


def _judge_watcher(flow: FlowState) -> ServiceStatus:
    age, leading = flow.heartbeat_seconds, flow.leading
    if age is None or age > _MAX_HEARTBEAT_SECONDS:
        silence = "no leader heartbeat yet" if age is None else f"no leader heartbeat for {age:.0f} s"
        return ServiceStatus(service=WATCHER.service, health="bad", text=silence)
    status = ServiceStatus(service=WATCHER.service, health="ok", text="leads")
    if leading is not None:
        status = replace(status, text=f"leads, epoch {leading.epoch}", leader=leading.holder)
    return status


def _judge_metadata(flow: FlowState) -> ServiceStatus:
    if flow.pulses and flow.seconds > PULSE_TTL_SECONDS and not _has_pulse(flow, METADATA.service):
        return _make_status(flow, METADATA.service, "bad", "no process runs it")
    health, text = _judge_backlog(flow, METADATA.service, "waiting for facts of a machine")
    if health == "ok" and flow.unreachable:
        health, text = "warning", f"machines that do not answer: {flow.unreachable}"
    return _make_status(flow, METADATA.service, health, text)


def _judge_consumer(flow: FlowState, service: str) -> ServiceStatus:
    consumer = flow.consumers.get(service)
    is_pulled = consumer is not None and (consumer.waiting or consumer.unacknowledged)
    if consumer is not None and not is_pulled and not _has_pulse(flow, service):
        if not consumer.delivered:
            return _make_status(flow, service, "off", "no process consumes its messages")
        text = f"no process pulls its messages; {consumer.pending} are pending"
        return _make_status(flow, service, "bad" if consumer.pending else "warning", text)
    health, text = _judge_backlog(flow, service, "waiting for a decision")
    if service == LABELER.service and flow.blocked:
        health, text = "warning", f"blocked Nodes: {flow.blocked}"
    elif health == "ok" and service == CSR.service and flow.denied:
        health, text = "warning", f"denied requests: {flow.denied}"
    return _make_status(flow, service, health, text)


def _judge_follower(flow: FlowState, service: str) -> ServiceStatus:
    if not _has_pulse(flow, service):
        return ServiceStatus(service=service, health="off", text="no process runs it")
    return ServiceStatus(service=service, health="ok", text="follows the flow")


def _has_pulse(flow: FlowState, service: str) -> bool:
    return any(pulse.service == service for pulse in flow.pulses)


def _list_accounts(flow: FlowState) -> Iterator[ServiceStatus]:
    for row in flow.accounts:
        report, silence = row.report, flow.now - row.reported_at
        counts = ", ".join(f"{count} {state}" for state, count in sorted(report.instances.items()) if count)
        failure = report.failure
        if silence > _SILENT_ACCOUNT_SECONDS:
            failure = f"no report for {silence:.0f} s"
        yield ServiceStatus(
            service=f"cloud-{report.account}",
            health="bad" if failure else "ok",
            text=failure or f"{report.provider}: {counts or 'no instances'}",
        )


def _judge_backlog(flow: FlowState, service: str, what: str) -> tuple[Health, str]:
    backlog = flow.backlogs.get(service, Backlog())
    if not backlog.count:
        return "ok", "nothing waits"
    is_late = flow.now - backlog.oldest > LATE_SECONDS
    return "warning" if is_late else "busy", f"{backlog.count} {what}"


def _make_status(flow: FlowState, service: str, health: Health, text: str) -> ServiceStatus:
    if count := flow.dead_letters.get(service, 0):
        letters = "1 dead letter" if count == 1 else f"{count} dead letters"
        health, text = "bad", f"{letters}; {text}"
    return ServiceStatus(service=service, health=health, text=text)
