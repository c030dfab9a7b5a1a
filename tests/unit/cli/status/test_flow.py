"""`talos-ccm status`: reports problems, and marks unknown parts without judging them."""

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from cli.cluster.kube_objects import CertificateSigningRequest, CsrCondition
from cli.cluster.lease_state import LeaseState
from cli.cluster.machine_events import make_unreachable
from cli.cluster.pods import Pod
from cli.cluster.snapshot import ClaimPages, ClusterSnapshot, ConfigFile
from cli.cluster.unavailable import Unavailable, list_known
from cli.inside import flow_snapshot
from cli.lines import format_age
from cli.status.cluster_status import ClusterStatus, build_status
from cli.status.nodes import summarize_nodes, summarize_requests
from cli.status.text import format_status
from libs.common.contract.controllers import CLOUD_NODE
from libs.common.contract.events import Event, InstanceExists, Leading
from libs.common.contract.kube_service import (
    BALANCER_BLOCKED_CONDITION,
    KubeServiceCondition,
    KubeServiceStatus,
)
from libs.common.contract.machine import MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, Node, NodeCondition, ObjectMeta
from services.ipam.core.pages import Claim, Page, encode_page, page_range_of
from tests import lifecycle_actors
from tests.architecture.sources import ROOT
from tests.builders import (
    NOW,
    STREAM_ID,
    make_dead_letter,
    make_decided,
    make_facts,
    make_kube_service,
    make_kube_service_observed,
    make_node,
    make_node_enriched,
    make_node_observed,
    make_request,
)
from tests.cli_snapshots import (
    hold_request,
    make_flow,
    make_kube_event,
    make_last_message,
    make_pod,
    read_screens,
    render_lines,
)
from tests.instance_reports import make_gone, make_recorded_node, make_report, make_shut_down

READY = (NodeCondition(type="Ready", status="True"),)
ANSWERED = make_node_enriched(make_node(), make_facts())


def ago_at(seconds: float) -> Any:
    return NOW - timedelta(seconds=seconds)


def stood(name: str, seconds: float, **more: Any) -> Node:
    """A Node that was registered so long ago."""
    return make_node(name, uid=f"uid-{name}", created=ago_at(seconds), **more)


def usable(name: str) -> Node:
    return stood(name, 90_000, taints=(), conditions=READY)


def filed(
    name: str, node: str, seconds: float, *conditions: str, issued: bool = False
) -> CertificateSigningRequest:
    request = make_request(name, node=node, created=ago_at(seconds))
    why = "asks for 10.0.0.9, which Talos does not report for machine web-2"
    text = f"This CSR was denied by Talos Cloud Controller Manager, Reason: {why}"
    told = tuple(CsrCondition(type=kind, reason="Denied", message=text) for kind in conditions)
    return hold_request(request, *told, certificate="PEM" if issued else "")


def a_queue(name: str, service: str, **more: Any) -> flow_snapshot.ConsumerSnapshot:
    return flow_snapshot.ConsumerSnapshot(
        name=name, service=service, **({"waiting": 1, "delivered_at": ago_at(3)} | more)
    )


FLOW = flow_snapshot.FlowSnapshot(
    at=NOW,
    stream=flow_snapshot.StreamSnapshot(
        created=STREAM_ID, messages=1204, bytes=3_200_000, max_bytes=256 * 2**20
    ),
    queues=(
        a_queue("labeler-nodes", "labeler"),
        a_queue("csr-requests", "csr"),
        a_queue("ipam-nodes", "ipam", waiting=0, pending=50),
    ),
    leading=make_last_message(Leading(stream_id=STREAM_ID, epoch=4, holder="ccm-watcher-1"), 2),
    certificates=(
        flow_snapshot.CertificateSnapshot(name="nats-server", expires_at=NOW + timedelta(days=300)),
        flow_snapshot.CertificateSnapshot(name="nats-authority", expires_at=NOW + timedelta(days=3000)),
    ),
)
PODS = (make_pod("nats"), make_pod("watcher"), make_pod("watcher", 2), make_pod("metadata"))
ISSUED = filed("csr-1", "web-1", 300, "Approved", issued=True)
WELL = ClusterSnapshot(
    at=NOW,
    events=(),
    config=None,
    claims=ClaimPages(),
    nodes=(usable("web-1"), usable("web-2")),
    requests=(ISSUED,),
    lease=LeaseState(holder="ccm-watcher-1", renewed_at=ago_at(4)),
    pods=(
        *PODS,
        make_pod("labeler"),
        make_pod("csr"),
    ),
    flow=FLOW,
    certificates=(flow_snapshot.CertificateSnapshot(name="talos", expires_at=NOW + timedelta(hours=5)),),
)
REFUSED = "10.0.0.7:50000: connection refused; retried without a limit"
BLOCKED = NodeCondition(
    type=BLOCKED_CONDITION,
    status="True",
    reason="TalosUnreachable",
    message=REFUSED,
)
LETTER = make_dead_letter("web-9", reason="not an event of this schema: Object missing required field `node`")
NO_ROUTE = MachineFault(kind="refused", step="s", message="no route to 10.0.0.5")
WAITS = make_decided("csr", "csr", "csr-4", outcome="waits", reason="its machine is not known yet")
ILL = msgspec.structs.replace(
    WELL,
    nodes=(
        *list_known(WELL.nodes),
        stood("web-3", 800, conditions=(BLOCKED,)),
        stood("web-4", 5),
        stood("web-5", 300),
    ),
    requests=(
        ISSUED,
        filed("csr-2", "web-2", 200, "Denied"),
        filed("csr-3", "web-3", 400),
        filed("csr-4", "web-3", 300),
        filed("csr-5", "web-4", 3),
        filed("csr-6", "web-5", 100, "Approved"),
    ),
    lease=LeaseState(holder="ccm-watcher-1", renewed_at=ago_at(100)),
    pods=(
        *PODS,
        make_pod("labeler", waiting="CrashLoopBackOff", restarts=7),
        make_pod("csr"),
    ),
    flow=msgspec.structs.replace(
        FLOW,
        queues=(
            a_queue("labeler-nodes", "labeler", waiting=0, pending=3, delivered_at=ago_at(200)),
            a_queue("csr-requests", "csr", unacknowledged=2, redelivered=2),
            FLOW.queues[2],
        ),
        leading=None,
        dead=(make_last_message(LETTER, 600),),
        dead_count=1,
        objects=(
            *make_flow("web-5", make_unreachable(make_node("web-5"), NO_ROUTE, NOW)).objects,
            *make_flow("csr-4", WAITS, kind="csr").objects,
        ),
    ),
)
ALL_IN_ONE = msgspec.structs.replace(
    WELL,
    pods=(make_pod(""), make_pod("", 2)),
    flow=flow_snapshot.FlowUnavailable(
        reason="all services run in one process (a DaemonSet), without NATS", is_all_in_one=True
    ),
    certificates=(),
)
BLIND = msgspec.structs.replace(
    WELL,
    requests=Unavailable(reason="list certificatesigningrequests: 403 Forbidden: no right"),
    lease=Unavailable(reason="get leases: 403 Forbidden: no right"),
    pods=Unavailable(reason="list pods: 403 Forbidden: no right"),
    claims=Unavailable(reason="list configmaps: 403 Forbidden: no right"),
    flow=flow_snapshot.FlowUnavailable(
        reason="list pods: 403 Forbidden: who runs this needs to list pods in kube-system"
    ),
    certificates=(),
)
OWNERSHIP = (
    "ownership: {nodeSelector: [{matchExpressions: "
    "[{key: metadata.name, operator: Regexp, values: ['^mine']}]}]}\n"
)
OFF = make_recorded_node("web-8", uid="uid-8", provider_id="hcloud://8")
DELETED = make_recorded_node("web-9", uid="uid-9", provider_id="hcloud://9")
NO_LOCATION = KubeServiceCondition(
    type=BALANCER_BLOCKED_CONDITION, status="True", reason="InvalidField", message="no location"
)
SHOP = make_kube_service("shop", namespace="default")
BLOCKED_SHOP = msgspec.structs.replace(SHOP, status=KubeServiceStatus(conditions=(NO_LOCATION,)))
LOST = msgspec.structs.replace(
    WELL,
    nodes=(*list_known(WELL.nodes), OFF, DELETED),
    flow=msgspec.structs.replace(
        FLOW,
        objects=tuple(
            make_flow(node.name, lifecycle_actors.make_unreachable(node), report).objects[0]
            for node, report in ((OFF, make_shut_down(OFF)), (DELETED, make_gone(DELETED)))
        ),
        blocked_services=(make_last_message(make_kube_service_observed(BLOCKED_SHOP)),),
    ),
)
CASES = {"well": WELL, "ill": ILL, "lost": LOST, "all-in-one": ALL_IN_ONE, "blind": BLIND}


def judged(evidence: ClusterSnapshot, **changes: Any) -> ClusterStatus:
    return build_status(msgspec.structs.replace(evidence, **changes))


def shown(evidence: ClusterSnapshot, *, width: int = 0) -> str:
    """As a terminal of that width shows it, or, with 0, a pipe."""
    return render_lines(format_status(build_status(evidence), width=width), width or None)


@pytest.mark.parametrize(
    ("name", "status"), [("well", 0), ("ill", 1), ("lost", 1), ("all-in-one", 0), ("blind", 2)]
)
def test_the_exit_status_and_the_json_say_what_is_wrong_and_what_is_not_known(name: str, status: int):
    found = build_status(CASES[name])
    assert found.exit_status == status
    told = json.loads(msgspec.json.encode(found))
    assert (told["requests"] is None) == (name == "blind")
    assert told["allInOne"] == (name == "all-in-one")
    assert bool(told["wrong"]) == (name in {"ill", "lost"})
    assert bool(told["unknown"]) == (name == "blind")


def test_the_page_shows_what_is_shown():
    page = (ROOT / "docs" / "status.md").read_text()
    for name in ("well", "ill"):
        assert read_screens("status")[name] in page
    assert read_screens("status")["lost"].partition("\n\n")[0] in page


# ---- Nodes


def test_a_node_that_joins_is_not_wrong_until_a_minute_has_passed_or_something_failed():
    def stuck(seconds: float, *conditions: NodeCondition) -> int:
        return len(summarize_nodes([stood("web-1", seconds, conditions=conditions)], FLOW, NOW).stuck)

    assert (stuck(59), stuck(60), stuck(1, BLOCKED)) == (0, 1, 1)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ((), "the watcher has not published it"),
        ((make_node_observed(make_node()),), "metadata has not queried its machine"),
        ((ANSWERED,), "the labeler has not decided"),
        ((ANSWERED, make_decided(outcome="waits", reason="r")), "labeler, waits: r"),
        ((LETTER,), "dead letters"),
    ],
)
def test_of_a_node_without_condition_the_step_that_is_missing_is_told(said: tuple[Event, ...], why: str):
    [one] = summarize_nodes([stood("web-1", 100)], make_flow("web-1", *said), NOW).uninitialized
    assert why in one.why
    [unread] = summarize_nodes([stood("web-1", 100)], None, NOW).uninitialized
    assert "talos-ccm explain node" in unread.why


def test_the_oldest_comes_first_and_a_node_without_a_time_counts_as_stuck():
    ageless = Node(metadata=ObjectMeta(name="a"), spec=make_node().spec)
    found = summarize_nodes([ageless, stood("young", 70), stood("old", 700)], None, NOW)
    assert [one.name for one in found.uninitialized] == ["old", "young", "a"]
    assert len(found.stuck) == 3


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ((lifecycle_actors.make_unreachable(OFF),), "machine does not answer"),
        ((lifecycle_actors.make_unreachable(OFF), make_shut_down(OFF)), "server off"),
        ((make_shut_down(OFF),), "server off"),
        ((lifecycle_actors.make_unreachable(OFF), make_gone(OFF)), "server gone"),
        # a machine that answers is not off, but the cloud may have deleted another server than it is
        ((make_node_enriched(OFF, make_facts()), make_shut_down(OFF)), ""),
        ((make_node_enriched(OFF, make_facts()), make_gone(OFF)), "server gone"),
        # the account that has the server knows better
        ((make_gone(OFF), make_shut_down(OFF, account="other")), "server off"),
        # another account may not have the server because it is of another project
        ((make_gone(OFF, account="other"),), ""),
        ((make_report(InstanceExists, OFF),), ""),
        # about an earlier Node of that name
        ((make_shut_down(OFF, node_uid="before"), make_gone(OFF, provider_id="hcloud://1")), ""),
        ((lifecycle_actors.make_unreachable(make_recorded_node("web-8", uid="before")),), ""),
        ((), ""),
    ],
)
def test_a_node_that_is_not_ready_is_a_problem_if_a_message_shows_why(messages: tuple[Event, ...], why: str):
    found = summarize_nodes([OFF], make_flow("web-8", *messages), NOW)
    assert [one.why for one in found.lost] == [why] * bool(why)
    assert found.not_ready == 1


def test_a_node_that_is_ready_or_excluded_or_not_initialized_is_not_lost():
    flow = make_flow("web-8", make_shut_down(OFF))
    assert summarize_nodes([OFF], flow, NOW).lost
    assert not summarize_nodes([OFF], None, NOW).lost
    ready = make_recorded_node("web-8", uid=OFF.uid, provider_id=OFF.spec.provider_id, conditions=READY)
    assert not summarize_nodes([ready], flow, NOW).lost
    excluding = msgspec.structs.replace(WELL, config=ConfigFile(text=OWNERSHIP, source="f"))
    assert not summarize_nodes([OFF], flow, NOW, excluding.get_ownership(CLOUD_NODE)).lost
    assert not summarize_nodes([stood("web-8", 900)], flow, NOW).lost


def test_of_many_lost_nodes_three_are_named():
    lost = [make_recorded_node(f"web-{number}", uid=f"uid-{number}") for number in range(4)]
    objects = tuple(make_flow(node.name, make_shut_down(node)).objects[0] for node in lost)
    found = judged(WELL, nodes=tuple(lost), flow=msgspec.structs.replace(FLOW, objects=objects))
    off = ", ".join(f"web-{number} (server off)" for number in range(3))
    assert found.wrong == (
        f"Nodes: 4 initialized but not ready, {off} and 1 more; run talos-ccm explain node web-0",
    )


def test_a_balancer_that_is_blocked_no_more_or_of_a_misplaced_message_is_no_problem():
    [blocked] = LOST.flow_snapshot.blocked_services if LOST.flow_snapshot else ()
    others = (
        make_last_message(make_kube_service_observed(SHOP)),
        msgspec.structs.replace(blocked, subject=f"{blocked.subject}.other"),
    )
    flow = msgspec.structs.replace(FLOW, blocked_services=others)
    assert judged(WELL, flow=flow).wrong == ()


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("", "3, 3 usable"),
        ("ownership: {nodeSelector: [", "3, 3 usable"),  # invalid: the services keep an earlier file
        (OWNERSHIP, "3, 3 usable (2 of them excluded by `ownership`)"),
    ],
)
def test_usable_nodes_that_ownership_excludes_are_counted(file: str, line: str):
    nodes = tuple(map(usable, ("mine-1", "web-1", "web-2")))
    found = judged(WELL, nodes=nodes, config=ConfigFile(text=file, source="f"))
    assert f"Nodes         {line}\n" in render_lines(format_status(found, width=0))
    assert found.exit_status == 0


def test_a_consumer_is_left_out_if_its_service_is_optional_and_not_installed():
    def listed(*pods: Pod) -> list[str]:
        return [one.name for one in judged(WELL, pods=pods).queues]

    assert listed(*PODS) == ["labeler-nodes", "csr-requests"], "labeler and csr run by default"
    assert listed(*PODS, make_pod("ipam")) == ["labeler-nodes", "csr-requests", "ipam-nodes"]


# ---- requests


@pytest.mark.parametrize(
    ("conditions", "seconds", "state", "wrong"),
    [
        ((), 59, "pending", False),
        ((), 61, "pending", True),
        (("Denied",), 1, "denied", True),
        (("Approved",), 5, "not-issued", False),
        (("Approved",), 61, "not-issued", True),
        (("Approved", "Failed"), 1, "failed", True),
    ],
)
def test_what_has_not_led_to_a_certificate_is_told(
    conditions: tuple[str, ...], seconds: float, state: str, wrong: bool
):
    [one] = summarize_requests([filed("a", "web-1", seconds, *conditions)], FLOW, NOW, {"web-1"}).open
    assert (one.state, one.is_wrong) == (state, wrong)


# ---- services, leader, queues


def test_without_the_right_to_list_pods_the_consumers_tell_who_is_there():
    found = judged(WELL, pods=Unavailable(reason="no right"))
    states = {one.name: one.state for one in found.services}
    assert states == {
        "watcher": "well", "metadata": "unknown", "labeler": "well", "csr": "well", "ipam": "absent",
        "lifecycle": "unknown"
    }  # fmt: skip
    assert found.exit_status == 0


def test_a_service_that_runs_by_default_and_takes_from_no_queue_is_missed():
    flow = msgspec.structs.replace(FLOW, queues=(a_queue("labeler-nodes", "labeler", waiting=0),))
    assert judged(WELL, pods=(), flow=flow).wrong == ("labeler: no client pulls from labeler-nodes",)
    assert judged(WELL, flow=flow).wrong == (
        "labeler: 1 of 1 pods ready, no client pulls from labeler-nodes",
    )


SILENT = msgspec.structs.replace(WELL, flow=msgspec.structs.replace(FLOW, leading=None))


@pytest.mark.parametrize(
    ("known", "lease", "text"),
    [
        (ALL_IN_ONE, LeaseState(), "the Lease has no holder"),
        (
            ALL_IN_ONE,
            LeaseState(holder="w", renewed_at=ago_at(16)),
            "the Lease has expired, so no watcher leads",
        ),
        (ALL_IN_ONE, LeaseState(holder="w", renewed_at=ago_at(14)), ""),
        # the heartbeat outweighs a clock that is wrong
        (WELL, LeaseState(holder="w", renewed_at=ago_at(500)), ""),
        (SILENT, WELL.lease, "it holds the Lease but publishes no leader heartbeat"),
    ],
)
def test_who_renews_no_lease_or_sends_no_heartbeat_does_not_lead(
    known: ClusterSnapshot, lease: LeaseState, text: str
):
    assert judged(known, lease=lease).leader.text == text


@pytest.mark.parametrize(
    ("queue", "text"),
    [
        ({"pending": 3}, ""),
        ({"pending": 3, "waiting": 0}, "no client pulls from it"),
        ({"pending": 3, "waiting": 0, "unacknowledged": 9}, ""),
        ({"pending": 3, "delivered_at": ago_at(61)}, "no progress for a minute"),
        ({"pending": 3, "delivered_at": ago_at(61), "acknowledged_at": ago_at(5)}, ""),
        ({"unacknowledged": 3, "delivered_at": ago_at(500)}, ""),
        ({"exists": False}, "it does not exist; the watcher creates it"),
    ],
)
def test_a_queue_is_wrong_where_something_waits_and_nothing_moves(queue: dict[str, Any], text: str):
    flow = msgspec.structs.replace(FLOW, queues=(a_queue("labeler-nodes", "labeler", **queue),))
    assert [one.text for one in judged(WELL, flow=flow).queues] == [text]


# ---- pod CIDRs, certificates


def test_pod_cidrs_are_counted_and_conflicts_are_wrong():
    node = msgspec.structs.replace(
        usable("web-1"), spec=make_node(pod_cidrs=("10.244.0.0/24",), taints=()).spec
    )
    block, name = "10.244.0.0/24", page_range_of("10.244.0.0/24")

    def claimed_for(uid: str) -> ClaimPages:
        page = Page(range=name, claims={block: Claim(block=block, uid=uid, node="web-1")})
        stored = (encode_page(page),)
        return ClaimPages(before=stored, after=stored)

    well = judged(WELL, nodes=(node,), claims=claimed_for(node.uid))
    assert well.exit_status == 0
    assert "Pod CIDRs     1 blocks in use; no conflicts" in render_lines(format_status(well, width=0))
    ill = judged(WELL, nodes=(node,), claims=claimed_for("another"))
    assert ill.exit_status == 1
    assert any(line.startswith("pod CIDRs: ") for line in ill.wrong)


@pytest.mark.parametrize(
    ("name", "left", "state"),
    [
        ("nats-server", timedelta(days=91), "well"),
        ("nats-server", timedelta(days=89), "wrong"),
        ("nats-authority", timedelta(days=364), "wrong"),
        ("talos", timedelta(minutes=31), "well"),
        ("talos", timedelta(minutes=-1), "wrong"),
    ],
)
def test_a_certificate_that_should_have_been_renewed_is_wrong(name: str, left: timedelta, state: str):
    one = flow_snapshot.CertificateSnapshot(name=name, expires_at=NOW + left)
    assert [
        each.state
        for each in judged(WELL, flow=flow_snapshot.FlowSnapshot(at=NOW), certificates=(one,)).certificates
    ] == [state]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (0.6, "1 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (200_000, "2 d"),
    ],
)
def test_lengths_of_time_are_short(seconds: float, text: str):
    assert format_age(seconds) == text


def test_a_rejected_configuration_is_a_problem_until_a_newer_one_is_accepted():
    rejected = make_kube_event("CloudConfigRejected", "line 3: no key", ago_at(60))
    accepted = make_kube_event("CloudConfigAccepted", "2 rules", ago_at(30))
    other = make_kube_event("PodCIDRPoolsChanged", "another", ago_at(10))
    told = build_status(msgspec.structs.replace(WELL, events=(other, rejected)))
    assert told.wrong == ("configuration: line 3: no key",)
    first, *others = build_status(msgspec.structs.replace(ILL, events=(rejected,))).wrong
    assert first == "configuration: line 3: no key"  # often the cause of the others
    assert others
    assert told.exit_status == 1
    assert not build_status(msgspec.structs.replace(WELL, events=(other, accepted, rejected))).wrong
    blind = build_status(msgspec.structs.replace(WELL, events=Unavailable(reason="forbidden")))
    assert "Events of the cluster: forbidden" in blind.unknown


# ---- services without a pod, and requests of nodes that are gone


def installed(*components: str, labeler: flow_snapshot.ConsumerSnapshot | None = None) -> ClusterStatus:
    """Return the status with one ready pod for each component, and at most one consumer."""
    flow = msgspec.structs.replace(FLOW, queues=(labeler,) if labeler else ())
    return judged(WELL, nodes=(), requests=(), pods=tuple(map(make_pod, components)), flow=flow)


def test_metadata_without_make_pod_is_missed_in_every_profile():
    why = "no pod exists; without it, no other service receives events"
    assert installed("nats", "watcher", "labeler", "csr").wrong == (f"metadata: {why}",)
    assert installed("nats", "watcher", "metadata", "csr").wrong == ()
    alone = judged(ALL_IN_ONE, pods=(make_pod(""),))
    assert (alone.wrong, [one.name for one in alone.services]) == ((), ["all-in-one"])


def test_a_labeler_that_is_scaled_to_nothing_is_missed_once_it_has_worked():
    without = ("nats", "watcher", "metadata", "csr")
    worked = a_queue("labeler-nodes", "labeler", waiting=0, pending=1, delivered_at=ago_at(300))
    why = "consumer labeler-nodes: labeler used this consumer before and is not running"
    assert installed(*without, labeler=worked).wrong == (why,)
    never = a_queue("labeler-nodes", "labeler", waiting=0, pending=9, delivered_at=None)
    assert installed(*without, labeler=never).wrong == (), "it was never installed: csr-only"


@pytest.mark.parametrize(("node", "wrong"), [("web-1", True), ("gone-1", False)])
@pytest.mark.parametrize("answer", ["Denied", "Failed", "Approved"])
def test_a_decision_about_a_node_that_is_gone_is_no_problem(node: str, wrong: bool, answer: str):
    told = judged(WELL, nodes=(usable("web-1"),), requests=(filed("csr-1", node, 300, answer),))
    assert ("CSRs: 1 nodes without" in " ".join(told.wrong)) is wrong
