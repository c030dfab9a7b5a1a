"""The state that the page shows: applies messages, and returns what changed since a version. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from libs.common.bus.protocol import ConsumerStats, Message, StreamStats, UnreadablePayload
from libs.common.bus.stream_limits import MAX_MESSAGE_AGE
from libs.common.contract import events
from libs.common.contract.node import Node
from libs.common.contract.services import CSR, DURABLES, LABELER, METADATA
from services.console.core import node_record, request_record
from services.console.core.cloud_rows import AccountRow, BalancerRow, build_balancer_row
from services.console.core.findings import Finding, list_findings
from services.console.core.flow_picture import Edge, Verdict, judge, list_edges, list_places
from services.console.core.history import History, HistoryStep
from services.console.core.node_detail import NodeDetail, list_changes, read_machine
from services.console.core.node_record import NodeRecord, NodeRow, NodeState, seconds_of
from services.console.core.overview import Backlog, FlowState, ServiceStatus, list_service_statuses
from services.console.core.pulse_board import PulseBoard
from services.console.core.request_record import RequestRecord, RequestRow

_MAX_REMOVED: Final = 5000  # names of removed objects that are kept for clients
_MAX_DECIDED_REQUESTS: Final = 1000  # approved and issued requests; all others are kept
_MAX_DEAD_LETTERS: Final = 100  # that are shown
_MAX_BALANCERS: Final = 100  # that are shown
_KINDS: Final[dict[type, str]] = {
    events.NodeObserved: "observed",
    events.CsrObserved: "observed",
    events.NodeEnriched: "enriched",
    events.NodeUnreachable: "enriched",
    events.CsrEnriched: "enriched_csr",
    events.Decided: "decided",
}
_SERVICE_OF_DURABLE: Final = {durable.name: durable.service for durable in DURABLES}
_decode_node = msgspec.json.Decoder(Node).decode


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of the first view, and what the page needs in every view."""

    services: tuple[ServiceStatus, ...]
    states: dict[str, int]  # state -> number of Nodes
    requests: dict[str, int]
    verdict: Verdict
    places: tuple[ServiceStatus, ...]  # of the picture
    edges: tuple[Edge, ...]
    problems: tuple[str, ...]  # why the state may be outdated
    stream: StreamStats | None = None  # None = unknown
    networks: events.ClusterNetworksObserved | None = None  # None = not published
    quarantine: events.Quarantine | None = None  # None = no ipam reports it
    dead_letters: tuple[events.DeadLetter, ...] = ()
    accounts: tuple[AccountRow, ...] = ()
    balancers: tuple[BalancerRow, ...] = ()  # of `balancer_count`, those that are not ready first
    balancer_count: int = 0


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """What a client gets: everything, or the changes since the version that it has."""

    version: int
    now: float
    is_complete: bool
    overview: Overview
    nodes: list[NodeRow]
    removed_nodes: list[str]
    requests: list[RequestRow]
    removed_requests: list[str]
    history: list[HistoryStep]


class ConsoleState:
    """All Nodes and requests of the stream, the overview and the history."""

    def __init__(self, *, now: float, namespace: str) -> None:
        self._namespace = namespace
        self.stats: StreamStats | None = None  # None = unknown
        self._history = History(now)
        self.version = 1  # grows with each change of a row
        self.clear(now)

    def clear(self, now: float) -> None:
        """Forget everything but the history: the stream was replaced."""
        self._followed_since = now
        self.version += 1
        self._complete_since = self.version  # clients with an older version get everything
        self._nodes: dict[str, NodeRecord] = {}
        self._requests: dict[str, RequestRecord] = {}
        self._newest_request: dict[str, str] = {}  # Node -> name
        self._unsettled: set[str] = set()  # Nodes whose state may change without a message
        self._removed: dict[tuple[str, str], int] = {}  # (kind, name) -> version, oldest first
        self._dead: dict[tuple[str, str, str], events.DeadLetter] = {}
        self._last: dict[type, Any] = {}
        self._accounts: dict[str, tuple[events.AccountReport, float]] = {}  # and its time
        self._rounds: dict[str, float] = {}  # account -> end of its last query about an instance
        self._balancers: dict[str, tuple[BalancerRow, float]] = {}  # by the key of the Service; and its time
        self._pulses = PulseBoard()
        self._replayed: set[str] = set()

    # ---- messages

    def start_replay(self) -> None:
        """Expect each message of the stream once more."""
        self._replayed = set()

    def finish_replay(self) -> None:
        """Remove what the stream no longer has."""
        for name in [name for name in self._nodes if f"node/{name}" not in self._replayed]:
            self._remove_node(name)
        for name in [name for name in self._requests if f"csr/{name}" not in self._replayed]:
            self._remove_request(name)
        for key in [key for key in self._balancers if f"service/{key}" not in self._replayed]:
            del self._balancers[key]

    def apply(self, message: Message, now: float, *, live: bool) -> None:
        """Apply one valid message; `live`: it was published while we followed."""
        event = message.event
        if isinstance(event, UnreadablePayload):
            return
        published_at = seconds_of(message.published_at)
        match event:
            case events.NodeObserved() | events.NodeGone():
                self._apply_node(event, published_at, now, live=live)
            case events.CsrObserved() | events.CsrGone():
                self._apply_request(event, published_at, now, live=live)
            case events.NodeEnriched() | events.NodeUnreachable():
                self._apply_enriched(event, message, now, live=live)
            case events.CsrEnriched():
                self._apply_enriched_request(event, message, now)
            case events.Decided():
                self._apply_decided(event, now, live=live)
            case events.DeadLetter():
                self._apply_dead_letter(event, now)
            case events.Pulse():
                self._apply_pulse(event, published_at, live=live)
            case _:
                self._apply_other(event, published_at, now, live=live)
        if live:
            is_of_cloud = isinstance(event, events.InstanceEvent)
            self._history.count("cloud" if is_of_cloud else _KINDS.get(type(event), "other"))

    def _apply_node(
        self, event: events.NodeObserved | events.NodeGone, published_at: float, now: float, *, live: bool
    ) -> None:
        if isinstance(event, events.NodeGone):
            self._remove_node(event.name)
            return
        name = event.node.name
        self._replayed.add(f"node/{name}")
        record = self._node(name)
        if record.is_observed and record.uid != event.node.uid:
            self._remove_node(name)
            record = self._node(name)
        node_record.apply_observed(record, event, published_at, live=live)
        if (request := self._request_of(name)) is not None and request.is_observed:
            request_record.add_hops(request, record)
        self._update_node(name, now)

    def _apply_enriched(
        self, event: events.NodeEnriched | events.NodeUnreachable, message: Message, now: float, *, live: bool
    ) -> None:
        name = event.node.name
        if live and name not in self._nodes:
            return  # the Node is gone
        node_record.apply_enriched(self._node(name), event, live=live)
        self._nodes[name].published = (message.sequence, seconds_of(message.published_at))
        self._update_node(name, now)

    def _apply_request(
        self, event: events.CsrObserved | events.CsrGone, published_at: float, now: float, *, live: bool
    ) -> None:
        if isinstance(event, events.CsrGone):
            self._remove_request(event.name)
            return
        name = event.request.name
        self._replayed.add(f"csr/{name}")
        record = self._requests.setdefault(name, RequestRecord(name=name))
        request_record.apply_observed(record, event.request, published_at, live=live)
        newest = self._requests.get(self._newest_request.get(record.node, ""))
        if newest is None or newest.created <= record.created:
            self._newest_request[record.node] = name
        self._update_request(record, now)

    def _apply_enriched_request(self, event: events.CsrEnriched, message: Message, now: float) -> None:
        record = self._requests.setdefault(event.request.name, RequestRecord(name=event.request.name))
        record.published = (message.sequence, seconds_of(message.published_at))
        record.fault = f"{event.fault.step}: {event.fault.message}" if event.fault is not None else ""
        self._update_request(record, now)

    def _apply_decided(self, event: events.Decided, now: float, *, live: bool) -> None:
        if event.kind == "csr":
            request = self._requests.get(event.name)
            if request is None and live:
                return  # the request is gone
            request = request or self._requests.setdefault(event.name, RequestRecord(name=event.name))
            request.decided = event
            self._update_request(request, now)
            return
        if live and event.name not in self._nodes:
            return
        record = self._node(event.name)
        if event.uid and record.uid and event.uid != record.uid:
            return
        was_initialized = "initialized" in record.hops
        node_record.apply_decided(record, event)
        if live and not was_initialized and "initialized" in record.hops and record.base.created:
            self._history.add_latency(record.hops["initialized"] - record.base.created)
        self._update_node(event.name, now)

    def _apply_pulse(self, pulse: events.Pulse, published_at: float, *, live: bool) -> None:
        self._pulses.apply(pulse, published_at, live=live)
        for event in pulse.events:
            if live and event.node not in self._nodes:
                continue  # the Node is gone
            record = self._node(event.node)
            node_record.add_event(record, event)
            self.version += 1  # the page fetches its details again
            record.version = self.version

    def _apply_other(self, event: events.Event, at: float, now: float, *, live: bool) -> None:
        match event:
            case events.AccountReport():
                self._accounts[event.account] = (event, at)
            case events.KubeServiceGone():
                self._balancers.pop(event.key, None)
            case events.KubeServiceObserved(service=service):
                self._replayed.add(f"service/{service.key}")
                self._balancers[service.key] = (build_balancer_row(service), at)
            case events.InstanceReport():
                last = self._rounds.get(event.account, 0.0)  # the account repeats old reports
                self._rounds[event.account] = max(last, seconds_of(event.answered_at))
                if live and event.name not in self._nodes:
                    return  # the Node is gone
                record = self._node(event.name)
                record.instances = {**record.instances, event.account: event}
                self._update_node(event.name, now)
            case _:
                self._last[type(event)] = event

    def _apply_dead_letter(self, letter: events.DeadLetter, now: float) -> None:
        self._dead[letter.service, letter.kind, letter.name] = replace(letter, payload="")
        if letter.kind == "node" and letter.name in self._nodes:
            record = self._nodes[letter.name]
            record.dead_letters = {**record.dead_letters, letter.service: letter.reason}
            self._update_node(letter.name, now)

    def _node(self, name: str) -> NodeRecord:
        row = NodeRow(name=name, state="joining", created=0.0)
        return self._nodes.setdefault(name, NodeRecord(name=name, base=row, row=row))

    def _remove_node(self, name: str) -> None:
        if self._nodes.pop(name, None) is not None:
            self._unsettled.discard(name)
            self._mark_removed("node", name)

    def _remove_request(self, name: str) -> None:
        record = self._requests.pop(name, None)
        if record is not None:
            if self._newest_request.get(record.node) == name:
                del self._newest_request[record.node]
            self._mark_removed("csr", name)

    def _mark_removed(self, kind: str, name: str) -> None:
        self.version += 1
        self._removed.pop((kind, name), None)
        self._removed[kind, name] = self.version
        if len(self._removed) > _MAX_REMOVED:
            oldest = next(iter(self._removed))
            self._complete_since = max(self._complete_since, self._removed.pop(oldest))

    # ---- rows

    def _update_node(self, name: str, now: float) -> None:
        record = self._nodes[name]
        if not record.is_observed:
            return
        request = self._request_of(name)
        findings = list_findings(record, request, now=now, namespace=self._namespace)
        row = _build_node_row(record, request, findings)
        may_wait = request is not None and request.state in ("pending", "approved")
        is_settled = row.state != "joining" and not (may_wait and row.state == "ready")
        (self._unsettled.discard if is_settled else self._unsettled.add)(name)
        if row != record.row or not record.version:
            self.version += 1
            record.row, record.version = row, self.version
            self._removed.pop(("node", name), None)

    def _update_request(self, record: RequestRecord, now: float) -> None:
        if not record.is_observed:
            return
        self.version += 1
        record.version = self.version
        self._removed.pop(("csr", record.name), None)
        if record.node in self._nodes:
            request_record.add_hops(record, self._nodes[record.node])
            self._update_node(record.node, now)

    def _request_of(self, node: str) -> RequestRecord | None:
        return self._requests.get(self._newest_request.get(node, ""))

    # ---- what time changes

    def advance(self, now: float) -> None:
        """Update the Nodes whose state follows from their age, and the history."""
        for name in tuple(self._unsettled):
            self._update_node(name, now)
        self._pulses.expire(now)
        self._forget_expired(now)
        stuck = self._count_states()["stuck"]
        unreachable = sum(1 for record in self._nodes.values() if record.fault is not None)
        self._history.advance(now, stuck=stuck, unreachable=unreachable, dead=len(self._dead))

    def _forget_expired(self, now: float) -> None:
        """Forget what the stream has dropped: it tells followers nothing, and an account may be removed."""
        oldest = now - MAX_MESSAGE_AGE.total_seconds()
        self._dead = {key: each for key, each in self._dead.items() if seconds_of(each.at) >= oldest}
        self._balancers = {key: each for key, each in self._balancers.items() if each[1] >= oldest}
        for account in [name for name, (_, at) in self._accounts.items() if at < oldest]:
            del self._accounts[account]
            self._rounds.pop(account, None)
            for record in [each for each in self._nodes.values() if account in each.instances]:
                record.instances = {name: each for name, each in record.instances.items() if name != account}
                self._update_node(record.name, now)

    # ---- what clients get

    def build_frame(
        self,
        since: int,
        now: float,
        *,
        heartbeat_seconds: float | None,
        problems: tuple[str, ...],
        history_after: float,
    ) -> Frame:
        """Return everything if `since` is 0 or too old, else the changes since that version."""
        if since < self._complete_since or since > self.version:
            since = 0
        removed = [key for key, version in self._removed.items() if version > since] if since else []
        return Frame(
            version=self.version,
            now=now,
            is_complete=since == 0,
            overview=self._build_overview(now, heartbeat_seconds, problems),
            nodes=[
                record.row for record in self._nodes.values() if record.is_observed and record.version > since
            ],
            removed_nodes=[name for kind, name in removed if kind == "node"],
            requests=[request_record.build_row(each) for each in self._list_requests(since)],
            removed_requests=[name for kind, name in removed if kind == "csr"],
            history=list(self._history.list_after(history_after if since else 0.0)),
        )

    def build_detail(
        self,
        name: str,
        now: float,
        *,
        observed: events.Event | None,
        machine: events.Event | None,
    ) -> NodeDetail | None:
        """Return everything about one Node, None if the stream does not have it.

        `observed` and `machine` are the last messages of the watcher and of metadata.
        """
        record = self._nodes.get(name)
        if record is None or not record.is_observed:
            return None
        requests = [each for each in self._requests.values() if each.node == name and each.is_observed]
        requests.sort(key=lambda each: each.created, reverse=True)
        platform, machine_problem = read_machine(machine)
        decisions = sorted(record.decisions.values(), key=lambda each: each.decided_at, reverse=True)
        return NodeDetail(
            row=record.row,
            hops=dict(record.hops.items()),
            is_initialized=record.is_initialized,
            findings=list_findings(record, self._request_of(name), now=now, namespace=self._namespace),
            decisions=decisions,
            recorded=tuple(each for each in record.recorded if each.uid == record.uid),
            recorded_since=self._followed_since,
            requests=[request_record.build_row(each) for each in requests],
            changes=(
                list_changes(_decode_node(record.before), observed.node)
                if record.before and isinstance(observed, events.NodeObserved)
                else None
            ),
            machine=platform,
            machine_problem=machine_problem,
        )

    def _list_requests(self, since: int) -> Iterator[RequestRecord]:
        changed = [each for each in self._requests.values() if each.is_observed and each.version > since]
        decided = [each for each in changed if each.state in ("approved", "issued")]
        decided.sort(key=lambda each: each.created)
        yield from (each for each in changed if each.state not in ("approved", "issued"))
        yield from decided[-_MAX_DECIDED_REQUESTS:]

    def _count_states(self) -> Counter[str]:
        return Counter(record.row.state for record in self._nodes.values() if record.is_observed)

    def _build_overview(
        self, now: float, heartbeat_seconds: float | None, problems: tuple[str, ...]
    ) -> Overview:
        stats = self.stats
        requests = Counter(each.state for each in self._requests.values() if each.is_observed)
        consumers = {_SERVICE_OF_DURABLE[each.name]: each for each in (stats.consumers if stats else ())}
        flow = FlowState(
            now=now,
            leading=self._last.get(events.Leading),
            heartbeat_seconds=heartbeat_seconds,
            consumers=consumers,
            backlogs=self._measure_backlogs(consumers),
            dead_letters=Counter(letter.service for letter in self._dead.values()),
            pulses=self._pulses.list_pulses(),
            recent_errors=self._pulses.count_recent_errors(),
            seconds=now - self._followed_since,
            unreachable=sum(1 for each in self._nodes.values() if each.fault is not None),
            blocked=sum(1 for each in self._nodes.values() if each.blocked is not None),
            denied=requests["denied"],
            accounts=tuple(
                AccountRow(report=report, reported_at=at, round_at=self._rounds.get(name, 0.0))
                for name, (report, at) in self._accounts.items()
            ),
        )
        services, states = list_service_statuses(flow), dict(self._count_states())
        places = list_places(services, sum(states.values()))
        balancers = [row for row, _ in self._balancers.values()]
        balancers.sort(key=lambda row: (row.state == "ready", row.name))
        blocked = sum(each.state == "blocked" for each in balancers)
        return Overview(
            services=services,
            states=states,
            requests={str(state): count for state, count in requests.items()},
            verdict=judge(services, states, blocked, problems),
            places=places,
            edges=list_edges(places, self._history.measure_rates(), now),
            problems=problems,
            stream=stats,
            networks=self._last.get(events.ClusterNetworksObserved),
            quarantine=self._pulses.find_quarantine(),
            dead_letters=tuple(self._dead.values())[-_MAX_DEAD_LETTERS:],
            accounts=flow.accounts,
            balancers=tuple(balancers[:_MAX_BALANCERS]),
            balancer_count=len(balancers),
        )

    def _measure_backlogs(self, consumers: Mapping[str, ConsumerStats]) -> dict[str, Backlog]:
        """Return the Nodes without an answer of metadata, and what waits in each durable, by service."""
        joining = [each for each in self._nodes.values() if each.is_observed and not each.is_initialized]
        unanswered = [each.observed_at for each in joining if not each.enriched_at]
        backlogs = {METADATA.service: Backlog(count=len(unanswered), oldest=min(unanswered, default=0.0))}
        for service, queue in consumers.items():
            records = self._requests.values() if service == CSR.service else self._nodes.values()
            waiting = [each for each in records if each.published[0] > queue.acknowledged_sequence]
            count = queue.pending + queue.unacknowledged
            oldest = min((each.published[1] for each in waiting), default=0.0) if count else 0.0
            backlogs[service] = Backlog(count=count, oldest=oldest)
        return backlogs


def _find_state(record: NodeRecord, findings: tuple[Finding, ...]) -> NodeState:
    decided = record.decisions.get(LABELER.service)
    if decided is not None and decided.outcome == "not-ours":
        return "foreign"
    if findings:
        return "stuck"
    return "ready" if record.is_initialized and node_record.is_ready(record) else "joining"


def _build_node_row(
    record: NodeRecord, request: RequestRecord | None, findings: tuple[Finding, ...]
) -> NodeRow:
    decided = max(record.decisions.values(), key=lambda each: each.decided_at, default=None)
    labeled = record.decisions.get(LABELER.service)
    finding = findings[0] if findings else None
    instance, instance_why = node_record.describe_instance(record)
    took = record.hops.get("initialized", 0.0) - record.base.created
    return replace(
        record.base,
        state=_find_state(record, findings),
        step=_find_step(record, request),
        what=finding.what if finding is not None else "",
        why=finding.cause if finding is not None else (decided.reason if decided is not None else ""),
        certificate=request.state if request is not None else "",
        instance=instance,
        instance_why=instance_why,
        rules=labeled.rules if labeled is not None else (),
        decided_by=decided.service if decided is not None else "",
        outcome=decided.outcome if decided is not None else "",
        took=round(took, 3) if took > 0 else record.base.took,  # omitted only if it is the default itself
    )


def _find_step(record: NodeRecord, request: RequestRecord | None) -> str:
    """Return the step that the Node waits for, "" if it waits for none."""
    if not record.is_initialized:
        return "initialization" if record.enriched_at and record.fault is None else "facts of the machine"
    if not node_record.is_ready(record):
        return "kubelet"
    if request is not None and request.state == "pending":
        return "approval of the certificate"
    if request is not None and request.state == "approved":
        return "certificate"
    return ""
