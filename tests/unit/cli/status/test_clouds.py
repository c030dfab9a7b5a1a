"""`talos-ccm status`: what each cloud account reports, and the Nodes that its limit of deletions keeps."""

from typing import Any

import msgspec
import pytest

from cli.cluster.snapshot import ClusterSnapshot
from cli.inside.flow_snapshot import FlowSnapshot
from cli.status.clouds import AccountStatus, summarize_accounts
from cli.status.cluster_status import build_status
from cli.status.run_status import choose_objects
from cli.status.text import format_status
from libs.common.contract.events import AccountReport, Decided
from libs.common.contract.node import Node, NodeCondition
from tests.builders import NOW, make_decided
from tests.cli_snapshots import make_flow, make_last_message, render_lines
from tests.instance_reports import make_recorded_node
from tests.lifecycle_actors import make_lost_node

LOST = make_recorded_node()
LIMITED = make_decided("lifecycle", uid=LOST.uid, outcome="limited")
READY = make_recorded_node(conditions=(NodeCondition(type="Ready", status="True"),))


def reporting(*events: Any, seconds: float = 5, **fields: Any) -> FlowSnapshot:
    """The flow with one report of the account prod, and messages about web-1."""
    usual: dict[str, Any] = {"account": "prod", "provider": "hcloud", "instances": {"exists": 2, "gone": 0}}
    report = make_last_message(AccountReport(**(usual | fields)), seconds)
    return msgspec.structs.replace(make_flow("web-1", *events), accounts=(report,))


def show(nodes: tuple[Node, ...], flow: Any) -> str:
    status = build_status(ClusterSnapshot(at=NOW, nodes=nodes, flow=flow))
    return render_lines(format_status(status, width=0))


@pytest.mark.parametrize(
    ("flow", "problems", "shown"),
    [
        (reporting(), [], "Clouds        prod: hcloud, 2 exist\n"),
        (
            reporting(instances={"exists": 1, "shut-down": 1, "gone": 3, "not-asked": 2}),
            [],
            "prod: hcloud, 1 exist, 1 shut down, 3 gone, 2 not asked for yet\n",
        ),
        (reporting(instances={"exists": 0}), [], "prod: hcloud, no Node of this cloud\n"),
        (reporting(failure="HTTP 401"), ["HTTP 401"], "prod: HTTP 401; hcloud, 2 exist\n"),
        (reporting(seconds=121), ["it has not reported for 2 min"], "for 2 min; hcloud"),
        (reporting(rate_limit=3600, requests_left=900), [], "prod: hcloud, 2 exist\n"),
        (
            reporting(rate_limit=3600, requests_left=899),
            ["899 of 3,600 requests remain of its rate limit"],
            "prod: 899 of 3,600 requests remain of its rate limit; hcloud",
        ),
    ],
)
def test_an_account_that_proves_nothing_is_a_problem(flow: FlowSnapshot, problems: list[str], shown: str):
    [account] = summarize_accounts((READY,), flow)
    assert [*account.list_problems()] == problems
    status = build_status(ClusterSnapshot(at=NOW, nodes=(READY,), flow=flow))
    assert [each for each in status.wrong if each.startswith("cloud account")] == [
        f"cloud account prod: {problem}" for problem in problems
    ]
    assert shown in show((READY,), flow)


def test_an_account_that_only_records_name_is_shown_and_no_problem():
    [account] = summarize_accounts((READY,), make_flow("web-1"))
    assert account == AccountStatus(name="prod")
    assert [*account.list_problems()] == []
    assert "Clouds        prod: no report within an hour" in show((READY,), make_flow("web-1"))


def test_a_report_in_the_name_of_another_account_is_ignored():
    forged = msgspec.structs.replace(reporting(failure="x").accounts[0], subject="talosccm.v1.cloud.a.report")
    flow = msgspec.structs.replace(reporting(), accounts=(forged,))
    assert summarize_accounts((READY,), flow) == (AccountStatus(name="prod"),)


@pytest.mark.parametrize(
    ("node", "decision", "waiting"),
    [
        (LOST, LIMITED, ("web-1",)),
        (LOST, msgspec.structs.replace(LIMITED, outcome="kept"), ()),
        (LOST, msgspec.structs.replace(LIMITED, uid="uid-before"), ()),
        (LOST, msgspec.structs.replace(LIMITED, service="labeler"), ()),
        (READY, LIMITED, ()),
    ],
)
def test_only_a_node_that_the_limit_keeps_waits(node: Node, decision: Decided, waiting: tuple[str, ...]):
    [account] = summarize_accounts((node,), reporting(decision))
    assert account.waiting == waiting


def test_many_nodes_that_wait_are_counted_and_some_are_named():
    names = tuple(f"web-{number}" for number in range(7))
    [problem] = AccountStatus(name="prod", provider="hcloud", waiting=names).list_problems()
    assert problem.startswith("7 Nodes of deleted servers kept")
    assert problem.endswith("web-0, web-1, web-2, web-3, web-4 and 2 more")


def test_the_messages_about_lost_nodes_are_read_and_those_with_a_record_come_first():
    lost = [make_recorded_node(f"web-{number}", uid=f"uid-{number}") for number in range(25)]
    healthy, other = READY, make_lost_node("other-1")
    chosen = choose_objects(ClusterSnapshot(at=NOW, nodes=(other, *lost, healthy)))
    assert [each.name for each in chosen] == [node.name for node in lost[:20]]
    few = choose_objects(ClusterSnapshot(at=NOW, nodes=(other, *lost[:2], healthy)))
    assert [each.name for each in few] == ["web-0", "web-1", "other-1"]
