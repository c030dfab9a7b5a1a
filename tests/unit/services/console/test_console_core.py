"""What the console concludes from messages, for tables of cases."""

from datetime import timedelta
from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import replace

from libs.common.bus.protocol import ConsumerStats, StreamStats
from libs.common.contract.events import (
    AccountReport,
    AnyInstanceReport,
    CsrObserved,
    Event,
    KubeServiceGone,
    NodeEnriched,
    ObservationOrder,
    Pulse,
    Quarantine,
    RecordedNodeEvent,
)
from libs.common.contract.fault_texts import FAULT_TEXTS
from libs.common.contract.kube_service import (
    BALANCER_BLOCKED_CONDITION,
    KubeService,
    KubeServiceCondition,
    LoadBalancerIngress,
)
from libs.common.contract.machine import FaultKind, MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, NETWORK_UNAVAILABLE, Node, NodeCondition
from libs.common.contract.services import CONSOLE
from libs.common.contract.signing_request import SigningRequestCondition
from libs.common.settings.read_settings import SettingsError, read_settings
from services.console.core.cloud_rows import build_balancer_row
from services.console.core.console_state import ConsoleState, Frame
from services.console.core.findings import JOIN_SECONDS
from services.console.core.history import STEP_SECONDS, History
from services.console.core.node_detail import list_changes, read_machine
from services.console.service import expand_definition
from services.console.settings import ConsoleSettings
from tests.builders import (
    NOW,
    STREAM_ID,
    make_csr_observed,
    make_dead_letter,
    make_decided,
    make_facts,
    make_kube_service,
    make_kube_service_observed,
    make_message,
    make_node,
    make_node_enriched,
    make_node_gone,
    make_node_observed,
    make_request,
    make_unreachable,
)
from tests.instance_reports import make_exists, make_gone, make_recorded_node, make_shut_down, make_unknown

START = NOW.timestamp()
LATE = START + 120
READY = NodeCondition(type="Ready", status="True")
DONE: dict[str, Any] = {"taints": (), "provider_id": "talos://x", "conditions": (READY,)}


def make_state(*events: Event, now: float = START, live: bool = True) -> ConsoleState:
    """The state after these messages."""
    state = ConsoleState(now=START, namespace="talos")
    for event in events:
        state.apply(make_message(event), now, live=live)
    return state


def build_frame(state: ConsoleState, since: int = 0, now: float = START) -> Frame:
    return state.build_frame(since, now, heartbeat_seconds=1.0, problems=(), history_after=0.0)


def find_faults(*events: Event, now: float = LATE) -> list[str]:
    """The faults of web-1."""
    state = make_state(*events, now=now)
    detail = state.build_detail("web-1", now, observed=None, machine=None)
    assert detail is not None
    return [finding.fault for finding in detail.findings]


def block(reason: str) -> Node:
    condition = NodeCondition(type=BLOCKED_CONDITION, status="True", reason=reason, message="why")
    return make_node(conditions=(condition,))


def observe_request(**fields: Any) -> CsrObserved:
    return make_csr_observed(make_request(**fields))


def condition(kind: str) -> tuple[SigningRequestCondition, ...]:
    return (SigningRequestCondition(type=kind, message="no such address"),)


@pytest.mark.parametrize(
    ("events", "faults"),
    [
        ([make_node_observed(make_node(**DONE))], []),
        ([make_node_observed(block("ProviderIDRuleFailed"))], ["rule-fails", "not-ready"]),
        ([make_node_observed(make_node(ip="", conditions=(READY,)))], ["no-node-ip"]),
        (
            [make_node_observed(make_node(conditions=(READY,)))],
            ["metadata-silent"],
        ),
        (
            [
                make_node_observed(make_node(conditions=(READY,))),
                make_node_enriched(make_node(), make_facts()),
            ],
            ["labeler-silent"],
        ),
        (
            [make_node_observed(make_node(conditions=(READY,))), make_unreachable()],
            ["talos-silent"],
        ),
        ([make_node_observed(make_node(**DONE)), make_dead_letter("web-1", reason="KeyError")], ["defect"]),
        ([make_node_observed(make_node(ip="", taints=(), conditions=(READY,)))], ["kubelet-not-external"]),
        (
            [
                make_node_observed(
                    make_node(**DONE | {"conditions": (NodeCondition(type="Ready", status="Unknown"),)})
                )
            ],
            ["kubelet-silent"],
        ),
        (
            [
                make_node_observed(make_node(**DONE)),
                make_decided("ipam", outcome="unserved", reason="the pool is full"),
            ],
            ["no-pod-cidr"],
        ),
        (
            [make_node_observed(make_node(**DONE)), observe_request(conditions=condition("Denied"))],
            ["certificate-denied"],
        ),
        (
            [make_node_observed(make_node(**DONE)), observe_request(conditions=condition("Approved"))],
            ["certificate-not-signed"],
        ),
        ([make_node_observed(make_node(**DONE)), observe_request()], ["certificate-waits"]),
    ],
)
def test_the_faults_of_a_node(events: list[Event], faults: list[str]):
    assert find_faults(*events) == faults


def test_a_node_that_joins_has_no_fault_before_its_time():
    observed = make_node_observed(make_node())
    assert find_faults(observed, make_unreachable(), now=START + JOIN_SECONDS - 1) == []
    state = make_state(observed)
    assert build_frame(state).overview.states == {"joining": 1}
    state.advance(LATE)
    assert build_frame(state).overview.states == {"stuck": 1}


def test_every_text_of_a_finding_can_be_filled():
    for kind in get_args(FaultKind):
        fault = MachineFault(kind=kind, step="connect", message="{node} {0}")
        [first, *_] = find_faults(make_node_observed(make_node()), make_unreachable(fault=fault))
        assert first in FAULT_TEXTS


def test_a_command_to_copy_quotes_what_others_name():
    state = make_state(
        make_node_observed(make_node(**DONE)),
        observe_request(name="x;reboot", conditions=condition("Denied")),
        now=LATE,
    )
    detail = state.build_detail("web-1", LATE, observed=None, machine=None)
    assert detail is not None
    assert "talos-ccm explain csr 'x;reboot'" in detail.findings[0].fix


def test_a_decision_after_a_dead_letter_ends_the_defect():
    letter = make_dead_letter("web-1", reason="KeyError")
    decided = make_decided(outcome="updated", reason="r")
    assert find_faults(make_node_observed(make_node(**DONE)), letter, decided) == []


def test_a_new_node_of_the_same_name_has_nothing_of_the_former_one():
    state = make_state(
        make_node_observed(make_node()),
        make_decided(outcome="blocked", uid="uid-1"),
        make_node_observed(make_node(uid="uid-2", resource_version="200")),
        make_decided(outcome="initialized", uid="uid-1"),
    )
    detail = state.build_detail("web-1", START, observed=None, machine=None)
    assert detail is not None
    assert (detail.decisions, "initialized" in detail.hops) == ([], False)


def test_a_frame_has_the_changes_since_a_version_and_everything_after_a_replaced_stream():
    state = make_state(make_node_observed(make_node()))
    before = build_frame(state)
    assert (before.is_complete, len(before.nodes)) == (True, 1)
    state.apply(make_message(make_node_gone(make_node())), START, live=True)
    after = build_frame(state, before.version)
    assert (after.is_complete, after.nodes, after.removed_nodes) == (False, [], ["web-1"])
    state.clear(START)
    assert build_frame(state, after.version).is_complete
    assert build_frame(state, 10_000).is_complete, "the version of a former process"


def test_a_replay_removes_what_the_stream_lost():
    state = make_state(make_node_observed(make_node()), make_node_observed(make_node("web-2", uid="uid-2")))
    state.start_replay()
    state.apply(make_message(make_node_observed(make_node())), START, live=False)
    state.finish_replay()
    assert build_frame(state).overview.states == {"joining": 1}


def test_the_row_of_a_node_that_is_not_initialized_has_no_duration():
    [row] = build_frame(make_state(make_node_observed(make_node()))).nodes
    assert b"took" not in msgspec.json.encode(row)


def test_late_messages_about_a_deleted_node_bring_nothing_back():
    late: list[Event] = [make_decided(), make_node_enriched(make_node(), make_facts())]
    state = make_state(make_node_observed(make_node()), make_node_gone(make_node()), *late)
    assert build_frame(state).nodes == []
    assert not state.build_detail("web-1", START, observed=None, machine=None)


def test_a_hop_that_was_replayed_is_not_shown_as_seen_but_a_decision_has_its_time():
    enriched: NodeEnriched = make_node_enriched(make_node(), make_facts())
    decided = make_decided(outcome="initialized", decided_at=NOW + timedelta(seconds=2))
    state = make_state(make_node_observed(make_node()), enriched, decided, live=False)
    detail = state.build_detail("web-1", START, observed=None, machine=None)
    assert detail is not None
    assert detail.hops == {"registered": START, "initialized": START + 2}


def test_the_details_have_what_changed_since_the_registration():
    first = make_node(labels={"role": "a"}, provider_id="")
    done = make_node(
        labels={"role": "b"}, taints=(), provider_id="talos://metal/1", pod_cidrs=("10.1.0.0/24",)
    )
    assert [(each.kind, each.field, each.value) for each in list_changes(first, done)] == [
        ("removed", "label role", "a"),
        ("removed", "taint node.cloudprovider.kubernetes.io/uninitialized", "true:NoSchedule"),
        ("added", "label role", "b"),
        ("added", "pod CIDR 10.1.0.0/24", ""),
        ("added", "providerID", "talos://metal/1"),
    ]
    observed = make_node_observed(done)
    for events, expected in (((make_node_observed(first), observed), 5), ((observed,), None)):
        detail = make_state(*events).build_detail("web-1", START, observed=observed, machine=None)
        assert detail is not None
        assert detail.is_initialized
        assert (None if detail.changes is None else len(detail.changes)) == expected


def test_a_machine_is_shown_with_its_last_metadata_and_why_it_is_silent():
    facts = make_facts(platform="hcloud", zone="z", tags={"a": "b"})
    assert read_machine(make_node_enriched(make_node(), facts)) == (facts.platform, "")
    machine, problem = read_machine(replace(make_unreachable(), last_known=facts))
    assert machine == facts.platform
    assert problem.endswith("connection refused (attempt 1)")
    assert read_machine(make_unreachable()) == (None, problem)
    assert read_machine(None) == (None, "")


def test_a_step_of_the_history_has_rates_and_percentiles():
    history = History(START)
    for seconds in range(100):
        history.count("observed")
        history.add_latency(seconds / 10)
    history.advance(START + STEP_SECONDS - 1, stuck=0, unreachable=0, dead=0)
    assert not list(history.list_after(0))
    history.advance(START + STEP_SECONDS, stuck=1, unreachable=2, dead=3)
    [step] = history.list_after(0)
    assert (step.observed, step.joined, step.p50, step.p99) == (10.0, 100, 5.0, 9.9)
    assert (step.stuck, step.unreachable, step.dead) == (1, 2, 3)


EXPOSED = (
    "--console-exposed",
    "--console-tls-cert-file=/tls.crt",
    "--console-tls-key-file=/tls.key",
    "--console-allowed-host=Console.example,FD00:0::1",
)


def test_the_settings_of_an_exposed_console_are_all_required_and_have_no_effect_alone():
    settings = read_settings([ConsoleSettings], [*EXPOSED, "--console-address=0.0.0.0"], {})
    assert settings.get(ConsoleSettings).hosts == ("console.example", "[fd00::1]")
    for flag in EXPOSED:
        with pytest.raises(SettingsError, match=r"--console-exposed (requires|must be set for) --console-"):
            read_settings([ConsoleSettings], [each for each in EXPOSED if each != flag], {})


@pytest.mark.parametrize("host", ["console.example:443", "https://console.example", "*.example", "a b"])
def test_an_allowed_host_is_a_name_or_an_address(host: str):
    with pytest.raises(SettingsError, match="without a port"):
        read_settings([ConsoleSettings], [*EXPOSED, f"--console-allowed-host={host}"], {})


def test_the_rights_of_the_console_follow_from_its_exposure():
    exposed = read_settings([ConsoleSettings], EXPOSED, {}).get(ConsoleSettings)
    assert [each.spec.policy_rules for each in expand_definition(exposed)] == [CONSOLE.policy_rules]
    assert [each.spec.policy_rules for each in expand_definition(ConsoleSettings())] == [()]


@pytest.mark.parametrize(
    "flag",
    [
        "--console-address=0.0.0.0",
        "--console-address=10.0.0.1",
        "--console-address=console.example",
        "--trace-url-template=javascript:alert({node})",
        "--trace-url-template=https://traces.example/",
    ],
)
def test_an_exposed_console_or_a_template_that_leads_nowhere_is_invalid(flag: str):
    with pytest.raises(SettingsError):
        read_settings([ConsoleSettings], [flag], {})


def test_the_loopback_and_a_template_with_the_node_are_valid():
    flags = ["--console-address=::1", "--trace-url-template=https://traces.example/?node={node}"]
    assert read_settings([ConsoleSettings], flags, {}).get(ConsoleSettings).address == "::1"


# ---- what the services report of themselves


def find_status(state: ConsoleState, service: str, *consumers: ConsumerStats, now: float = START) -> Any:
    state.stats = StreamStats(messages=1, bytes=1, max_bytes=-1, dead_letters=0, consumers=consumers)
    frame = build_frame(state, now=now)
    return next(each for each in frame.overview.services if each.service == service)


def queue_of(name: str, *, pending: int = 0, unacknowledged: int = 0, acknowledged: int = 0) -> ConsumerStats:
    return ConsumerStats(
        name=name,
        pending=pending,
        unacknowledged=unacknowledged,
        redelivered=0,
        waiting=1,
        delivered=1,
        acknowledged_sequence=acknowledged,
    )


def test_errors_are_recent_for_five_minutes():
    state = make_state(Pulse(service="labeler", instance="a", errors={"dead letters": 2}), live=False)
    status = find_status(state, "labeler")
    assert not status.errors
    for instance, count in (("a", 3), ("a", 3), ("b", 4)):
        pulse = Pulse(service="labeler", instance=instance, errors={"dead letters": count})
        state.apply(make_message(pulse), START, live=True)
    status = find_status(state, "labeler")
    assert dict(status.errors) == {"dead letters": 5}
    assert status.trouble.endswith("Errors in the last five minutes: dead letters 5")
    assert not find_status(state, "csr").errors
    state.advance(START + 299)
    assert dict(find_status(state, "labeler").errors) == {"dead letters": 5}
    assert not find_status(state, "labeler").details, "pulses expire before"
    state.advance(START + 301)
    assert not find_status(state, "labeler").errors


def test_the_lag_of_a_consumer_and_its_oldest_message_follow_from_the_stream():
    state = ConsoleState(now=START, namespace="talos")
    for sequence, name in enumerate(("web-1", "web-2", "web-3"), 1):
        state.apply(make_message(make_node_observed(make_node(name))), START, live=True)
        enriched = make_message(make_node_enriched(make_node(name), make_facts()), sequence=sequence)
        published_at = NOW + timedelta(seconds=sequence)
        state.apply(replace(enriched, published_at=published_at), START, live=True)
    queue = queue_of("labeler-nodes", pending=1, unacknowledged=1, acknowledged=1)
    status = find_status(state, "labeler", queue)
    assert (status.lag, status.lag_since) == (2, START + 2)
    assert find_status(state, "ipam", queue).lag == 0
    idle = find_status(state, "labeler", queue_of("labeler-nodes", acknowledged=1))
    assert (idle.lag, idle.lag_since) == (0, 0.0), "an acknowledgement may lag behind the message"


def test_messages_that_wait_for_ipam_are_late_after_a_while():
    state = make_state(make_node_observed(make_node()), make_node_enriched(make_node(), make_facts()))
    queue = queue_of("ipam-nodes", unacknowledged=1)
    assert find_status(state, "ipam", queue).health == "busy"
    assert find_status(state, "ipam", queue, now=START + 16).health == "warning"


def test_metadata_lags_by_the_nodes_that_it_has_not_answered_or_by_more_that_it_has_not_received():
    state = make_state(make_node_observed(make_node()))
    assert (find_status(state, "metadata").lag, find_status(state, "metadata").lag_since) == (1, START)
    state.apply(make_message(Pulse(service="metadata", instance="a", lag=9)), START, live=True)
    assert find_status(state, "metadata").lag == 9


def test_a_follower_reports_its_own_lag():
    state = make_state(
        Pulse(service="lifecycle", instance="a", lag=7, oldest_at=NOW),
        Pulse(service="lifecycle", instance="b"),
    )
    status = find_status(state, "lifecycle")
    assert (status.lag, status.lag_since) == (7, START)


def test_a_process_that_is_not_ready_is_named_beside_one_that_is():
    state = make_state(
        Pulse(service="ipam", instance="a", problems=("no pod network",)), Pulse(service="ipam", instance="b")
    )
    status = find_status(state, "ipam")
    assert (status.health, status.trouble) == ("ok", "1 of 2 not ready: no pod network")
    assert status.details == "2 processes; 1 of 2 not ready: no pod network"


def test_the_details_of_a_service_name_its_leader_and_what_waits():
    state = make_state(Pulse(service="lifecycle", instance="a", lag=1, is_leading=True))
    assert find_status(state, "lifecycle").details == "1 process; leader a; 1 message waiting"


def test_metadata_without_a_process_is_bad_once_its_pulse_is_overdue():
    state = make_state(Pulse(service="watcher", instance="a"))
    assert find_status(state, "metadata", now=START + 30).health == "ok"
    status = find_status(state, "metadata", now=START + 31)
    assert (status.health, status.text) == ("bad", "no process runs it")


def test_the_quarantine_is_that_of_the_ipam_process_that_read_the_claims_last_and_goes_with_it():
    state = make_state(Pulse(service="ipam", instance="a"))
    assert build_frame(state).overview.quarantine is None
    older, newer = (Quarantine(read_at=NOW + timedelta(seconds=n), count=n, blocks=()) for n in (1, 2))
    for instance, report in (("a", newer), ("b", older)):
        pulse = Pulse(service="ipam", instance=instance, quarantine=report)
        state.apply(make_message(pulse), START, live=True)
    assert build_frame(state).overview.quarantine == newer
    state.advance(START + 31)
    assert build_frame(state).overview.quarantine is None, "the pulses have expired"


def make_node_event(**changed: Any) -> RecordedNodeEvent:
    event = RecordedNodeEvent(
        node="web-1",
        uid="uid-1",
        component="talos-ccm-labeler",
        type="Normal",
        reason="Synced",
        message="m",
        at=NOW,
    )
    return replace(event, **changed)


def list_events(state: ConsoleState) -> list[str]:
    """The messages of the Events of web-1."""
    detail = state.build_detail("web-1", START, observed=None, machine=None)
    assert detail is not None
    return [event.message for event in detail.recorded]


def test_the_details_have_the_last_events_of_the_node_once_and_none_of_a_former_node():
    state = make_state(make_node_observed(make_node()))
    version = state.version
    late = [make_node_event(message=f"{n}", at=NOW + timedelta(seconds=n)) for n in range(12)]
    former, other = make_node_event(uid="uid-0", message="former"), make_node_event(node="web-2")
    pulse = Pulse(service="labeler", instance="a", events=(*late, former, other))
    for _ in range(2):  # the stream repeats the last pulse after a reconnect
        state.apply(make_message(pulse), START, live=True)
    assert list_events(state) == [f"{n}" for n in range(11, 1, -1)]
    assert [row.name for row in build_frame(state, since=version).nodes] == ["web-1"], "the page reads again"
    repeated = make_node_event(message="2", at=NOW + timedelta(minutes=1))
    state.apply(make_message(Pulse(service="labeler", instance="b", events=(repeated,))), START, live=True)
    assert list_events(state) == ["2", *(f"{n}" for n in range(11, 2, -1))]


def test_events_in_a_pulse_that_is_replayed_before_its_node_are_not_lost():
    pulse = Pulse(service="labeler", instance="a", events=(make_node_event(), make_node_event(node="gone")))
    state = make_state(pulse, make_node_observed(make_node()), live=False)
    assert list_events(state) == ["m"]
    assert [row.name for row in build_frame(state).nodes] == ["web-1"]


def test_the_time_since_which_events_are_kept_is_that_of_the_current_stream():
    state = make_state()
    state.clear(START + 60)
    state.apply(make_message(make_node_observed(make_node())), START + 61, live=True)
    detail = state.build_detail("web-1", START, observed=None, machine=None)
    assert detail is not None
    assert detail.recorded_since == START + 60


# ---- clouds

HCLOUD = make_node("web-1", uid="uid-1", taints=(), provider_id="hcloud://1001", conditions=(READY,))
OTHER_UID = make_node("web-1", uid="uid-0", taints=(), provider_id="hcloud://1001")


@pytest.mark.parametrize(
    ("reports", "state"),
    [
        ((make_exists(HCLOUD),), "exists"),
        ((make_shut_down(HCLOUD),), "off"),
        ((make_gone(HCLOUD),), "gone"),
        ((make_unknown(HCLOUD),), "unknown"),
        ((make_exists(HCLOUD), make_gone(HCLOUD)), "gone"),
        ((make_exists(HCLOUD), make_gone(HCLOUD, account="another")), "exists"),
        ((make_exists(OTHER_UID),), None),
        ((), None),
    ],
)
def test_a_node_shows_what_its_cloud_says_of_its_instance(
    reports: tuple[AnyInstanceReport, ...], state: str | None
):
    frame = build_frame(make_state(make_node_observed(HCLOUD), *reports))
    assert frame.nodes[0].instance == (state or "")


@pytest.mark.parametrize(
    ("conditions", "events", "faults"),
    [
        ((), (make_unreachable(), make_shut_down(HCLOUD)), ["instance-shut-down"]),
        ((), (make_unreachable(), make_exists(HCLOUD)), ["talos-silent", "not-ready"]),
        ((), (make_unreachable(), make_shut_down(OTHER_UID)), ["talos-silent", "not-ready"]),
        ((), (make_node_enriched(HCLOUD, make_facts()), make_shut_down(HCLOUD)), ["not-ready"]),
        ((READY,), (make_unreachable(), make_shut_down(HCLOUD)), ["talos-silent"]),
    ],
    ids=["off", "on", "another Node", "its machine answers", "its kubelet reports"],
)
def test_a_silent_node_whose_server_is_off_has_only_this_problem(
    conditions: tuple[NodeCondition, ...], events: tuple[Event, ...], faults: list[str]
):
    node = make_node("web-1", uid=HCLOUD.uid, taints=(), provider_id="hcloud://1001", conditions=conditions)
    assert find_faults(make_node_observed(node), *events) == faults


@pytest.mark.parametrize(
    ("account", "ready", "faults"),
    [
        ("prod", "Unknown", ["instance-gone-kept"]),
        ("another", "Unknown", ["talos-silent", "kubelet-silent"]),
        ("prod", "True", ["talos-silent"]),
    ],
    ids=["gone", "never shown alive by that account", "its kubelet reports"],
)
def test_a_silent_node_whose_server_is_gone_has_only_this_problem(
    account: str, ready: str, faults: list[str]
):
    conditions = (NodeCondition(type="Ready", status=ready),)
    node = make_recorded_node(conditions=conditions)
    decided = make_decided("lifecycle", uid=node.uid, outcome="kept", reason="the machine answers elsewhere")
    state = make_state(
        make_node_observed(node),
        make_unreachable(node),
        make_gone(node, account=account),
        decided,
        now=LATE,
    )
    detail = state.build_detail("web-1", LATE, observed=None, machine=None)
    assert detail is not None
    assert [finding.fault for finding in detail.findings] == faults
    if faults == ["instance-gone-kept"]:
        [finding] = detail.findings
        assert "Cloud account prod no longer finds its server hcloud://1001" in finding.cause
        assert "the machine answers elsewhere" in finding.cause
        assert finding.fix.endswith("talos-ccm explain node web-1")


def test_a_node_shows_what_the_network_of_its_cloud_routes_to_it():
    condition = NodeCondition(type=NETWORK_UNAVAILABLE, status="True", message="No route for 10.244.1.0/24")
    node = make_node("web-1", conditions=(READY, condition))
    frame = build_frame(make_state(make_node_observed(node)))
    assert frame.nodes[0].route == "No route for 10.244.1.0/24"


@pytest.mark.parametrize("is_node_first", [True, False])
def test_the_hops_end_with_the_first_certificate_since_the_registration(is_node_first: bool):
    def file(name: str, seconds: int) -> CsrObserved:
        created = NOW + timedelta(seconds=seconds)
        return observe_request(name=name, created=created, conditions=condition("Approved"))

    def approve(name: str, seconds: int) -> Event:
        decided_at = NOW + timedelta(seconds=seconds)
        return make_decided("csr", kind="csr", name=name, outcome="approved", decided_at=decided_at)

    node = make_node_observed(make_node(**DONE))  # created at NOW
    former = (file("csr-1", -600), approve("csr-1", -599))
    joining = (file("csr-2", 3), approve("csr-2", 5))
    renewal = (file("csr-3", 86400), approve("csr-3", 86401))
    first = (node, *former) if is_node_first else (*former, node)
    detail = make_state(*first, *joining, *renewal).build_detail("web-1", LATE, observed=None, machine=None)
    assert detail is not None
    assert (detail.hops["requested"], detail.hops["approved"]) == (START + 3, START + 5)


def test_an_account_shows_its_last_round_and_is_bad_when_it_does_not_answer_or_report():
    node = make_node_observed(HCLOUD)
    report = AccountReport(account="prod", provider="hcloud", instances={"exists": 1})
    state = make_state(node, make_exists(HCLOUD), report)
    (account,) = build_frame(state).overview.accounts
    assert account.report == report
    assert account.round_at == make_exists(HCLOUD).answered_at.timestamp()

    def judge(state: ConsoleState, now: float) -> tuple[str, str]:
        status = build_frame(state, now=now).overview.services[-1]
        return status.health, status.text

    published_at = account.reported_at
    assert judge(state, published_at + 60) == ("ok", "hcloud: 1 exists")
    assert judge(state, published_at + 200) == ("bad", "no report for 200 s")
    failed = make_state(AccountReport(account="prod", provider="hcloud", failure="no answer within 30 s"))
    assert judge(failed, published_at) == ("bad", "no answer within 30 s")


def test_an_account_that_was_removed_is_forgotten_with_its_last_report():
    report = AccountReport(account="prod", provider="hcloud", instances={"gone": 1})
    lost = make_recorded_node(conditions=(NodeCondition(type="Ready", status="Unknown"),))
    state = make_state(make_node_observed(lost), make_gone(lost), report)
    state.advance(START + 3600)
    frame = build_frame(state)
    assert [each.report.account for each in frame.overview.accounts] == ["prod"]
    assert frame.nodes[0].instance == "gone"
    state.advance(START + 3601)
    assert build_frame(state).overview.accounts == ()
    [node] = build_frame(state, since=frame.version).nodes
    assert (node.instance, node.what) == ("", "not reporting")


def add_condition(service: KubeService, **fields: Any) -> KubeService:
    condition = KubeServiceCondition(type=BALANCER_BLOCKED_CONDITION, message="no location", **fields)
    return replace(service, status=replace(service.status, conditions=(condition,)))


def test_the_headline_counts_blocked_load_balancers():
    blocked = make_kube_service_observed(add_condition(make_kube_service("api"), status="True"))
    state = make_state(make_node_observed(make_node(**DONE)), blocked)
    assert build_frame(state).overview.verdict.title == "1 load balancer is blocked"


@pytest.mark.parametrize(
    ("service", "state", "reason"),
    [
        (make_kube_service(), "waiting", ""),
        (make_kube_service(ingress=(LoadBalancerIngress(ip="203.0.113.7"),)), "ready", ""),
        (add_condition(make_kube_service(), status="True"), "blocked", "no location"),
        (add_condition(make_kube_service(), status="False"), "waiting", ""),
        (make_kube_service(deleted_at=NOW), "deleting", ""),
    ],
)
def test_a_balancer_shows_its_state_and_why_it_is_blocked(service: KubeService, state: str, reason: str):
    row = build_balancer_row(service)
    assert (row.name, row.state, row.reason) == ("shop/web", state, reason)


def test_services_go_with_their_message_and_with_a_replay_that_lacks_them():
    web, api = (make_kube_service_observed(make_kube_service(name)) for name in ("web", "api"))
    state = make_state(web, api)
    assert [row.name for row in build_frame(state).overview.balancers] == ["shop/api", "shop/web"]
    order = ObservationOrder(epoch=1, resource_version=101)
    gone = KubeServiceGone(
        stream_id=STREAM_ID, order=order, name="api", namespace="shop", uid="u", observed_at=NOW
    )
    state.apply(make_message(gone), START, live=True)
    assert [row.name for row in build_frame(state).overview.balancers] == ["shop/web"]
    state.start_replay()
    state.finish_replay()
    assert build_frame(state).overview.balancers == ()


def test_a_service_is_forgotten_when_the_watcher_publishes_services_no_more():
    state = make_state(make_kube_service_observed(add_condition(make_kube_service("api"), status="True")))
    state.advance(START + 3600)
    assert build_frame(state).overview.verdict.title == "1 load balancer is blocked"
    state.advance(START + 3601)
    assert build_frame(state).overview.balancers == ()


def test_the_page_gets_some_balancers_and_the_number_of_all():
    services = [make_kube_service_observed(make_kube_service(f"web-{number}")) for number in range(101)]
    overview = build_frame(make_state(*services)).overview
    assert (len(overview.balancers), overview.balancer_count) == (100, 101)
