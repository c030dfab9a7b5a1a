"""What `talos-ccm explain node` says first of a Node whose server its cloud no longer runs."""

from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from cli.explain.node.node_explanation import NodeExplanation, explain_node_evidence
from cli.explain.node.output import format_verdict
from libs.common.contract.events import Decided, Event
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.node import Node, NodeCondition
from services.cloud.core.judge_round import NEVER_SEEN
from services.lifecycle.core.decide import DeletionPolicy, Keep
from services.lifecycle.core.evidence import Assessment
from tests.builders import NOW, make_decided, make_facts
from tests.cli_snapshots import make_evidence, make_flow, render_lines
from tests.instance_reports import (
    PROVIDER_ID,
    make_exists,
    make_gone,
    make_recorded_node,
    make_shut_down,
    make_unknown,
)
from tests.lifecycle_actors import OWN_UUID, make_lost_node

MINUTE: Final = timedelta(minutes=1)
LOST: Final = make_recorded_node()
NEVER: Final = make_lost_node(provider_id=PROVIDER_ID, system_uuid=OWN_UUID)
SILENT: Final = MachineFault(kind="timeout", step="PlatformMetadata", endpoint="cp-1", message="no answer")
READY: Final = make_recorded_node(conditions=(NodeCondition(type="Ready", status="True"),))
FAULTS_OF_SILENCE: Final = ("talos-silent", "kubelet-silent")
OF_OTHERS: Final = "ownership: {providerIDSchemes: [talos]}"


def decided(outcome: str, reason: str) -> Decided:
    return make_decided("lifecycle", uid=LOST.uid, outcome=outcome, reason=reason)


def answering(provider_id: str = PROVIDER_ID) -> MachineFacts:
    return make_facts(node_name="web-1", platform="hcloud", provider_id=provider_id)


class Case(NamedTuple):
    """A Node with the messages about it, and the first finding."""

    fault: str
    cause: str  # a part of it
    fix: str
    node: Node
    messages: tuple[Event, ...]
    evidence: dict[str, Any]


def case(fault: str, cause: str, fix: str, node: Node, *messages: Event, **evidence: Any) -> Case:
    return Case(fault, cause, fix, node, messages, evidence)


def keeps(cause: str, fix: str, *messages: Event, node: Node = LOST, **evidence: Any) -> Case:
    return case("instance-gone-kept", cause, fix, node, *messages, **evidence)


DELETE: Final = "kubectl delete node web-1."
REGISTER: Final = "kubectl delete node web-1, then talosctl -n 10.0.0.5 service kubelet restart"
GONE: Final = make_gone(LOST)
KEPT: Final = Keep(
    assessment=Assessment(missing=("x",)),
    others=(("the cloud's instances", Assessment(missing=("3 polls, of which 2 exist",))),),
)
# What each clause names is tested with lifecycle, and test_runbooks has a release for each.
CASES: Final = {
    "gone, and lifecycle does not run": case(
        "instance-gone", "yet: lifecycle has not decided on it.", DELETE, LOST, GONE
    ),
    "gone, and time is missing": case(
        "instance-gone",
        "yet: 3 polls, of which 2 exist.",
        DELETE,
        LOST,
        GONE,
        decided("kept", KEPT.reason),
    ),
    "gone, in a dry run": case(
        "instance-gone", "yet: a dry run would", DELETE, LOST, GONE, decided("would-delete", "so")
    ),
    "gone, and the limit is reached": case(
        "instance-gone",
        "yet: 30 in the last hour, the limit of account prod is 30.",
        DELETE,
        LOST,
        GONE,
        decided("kept", "all evidence; but 30 in the last hour, the limit of account prod is 30"),
    ),
    "not lifecycle's": keeps("none of ownership.providerIDSchemes", DELETE, GONE, file=OF_OTHERS),
    "another providerID": keeps(
        "another providerID: 'hcloud://1002'", REGISTER, GONE, machine=answering("hcloud://1002")
    ),
    "another credential": keeps(
        "before the credential was loaded",
        "component=cloud-prod",
        make_gone(LOST, credential_loaded_at=NOW + MINUTE),
    ),
    "another server of that name": keeps(
        "account prod has another instance", REGISTER, make_unknown(LOST, namesake="12")
    ),
    "its machine is not reported on": keeps(
        "metadata has not reported on its machine yet", "component=metadata", GONE, machine=None
    ),
    "never seen": case(
        "instance-never-seen",
        "account prod does not find",
        DELETE,
        NEVER,
        make_unknown(NEVER, reason=NEVER_SEEN),
    ),
    "never seen by two accounts": case(
        "instance-never-seen",
        "account a and b does not find",
        DELETE,
        NEVER,
        *(make_unknown(NEVER, account=each, reason=NEVER_SEEN) for each in ("a", "b")),
    ),
    "off": case(
        "instance-shut-down",
        f"{PROVIDER_ID} is shut down, as cloud account prod",
        "Start",
        LOST,
        make_shut_down(LOST),
    ),
}


def explain(node: Node, *messages: Event, **evidence: Any) -> NodeExplanation:
    flow = make_flow("web-1", *messages)
    known: dict[str, Any] = {"machine": SILENT, "flow": flow} | evidence
    return explain_node_evidence(make_evidence(node, **known), DeletionPolicy())


def list_faults(node: Node, *messages: Event, **evidence: Any) -> list[str]:
    return [finding.fault for finding in explain(node, *messages, **evidence).verdict.findings]


@pytest.mark.parametrize("name", CASES)
def test_the_first_finding_names_the_account_what_it_says_and_what_to_do(name: str):
    fault, cause, fix, node, messages, evidence = CASES[name]
    first = explain(node, *messages, **evidence).verdict.findings[0]
    assert (first.fault, first.since is not None) == (fault, True)
    assert cause in first.cause
    assert fix in first.fix


def test_a_machine_whose_server_is_gone_or_off_is_not_also_called_silent():
    for report in (GONE, make_shut_down(LOST)):
        assert not {*FAULTS_OF_SILENCE} & {*list_faults(LOST, report)}
    never = list_faults(NEVER, make_unknown(NEVER, reason=NEVER_SEEN))
    assert "kubelet-silent" in never  # its account may be that of another project


@pytest.mark.parametrize(
    ("node", "messages", "cause"),
    [
        (LOST, (make_unknown(LOST),), "account prod cannot tell"),
        (NEVER, (make_unknown(NEVER),), "HTTP 503"),
        (LOST, (), "it has reported nothing for an hour"),
        (LOST, (make_unknown(LOST, account="other", reason=NEVER_SEEN),), "account prod cannot tell"),
    ],
)
def test_an_account_without_an_answer_is_named_after_the_machine_that_is_silent(
    node: Node, messages: tuple[Event, ...], cause: str
):
    explanation = explain(node, *messages)
    *others, last = explanation.verdict.findings
    assert last.fault == "instance-unknown"
    assert "kubelet-silent" in {finding.fault for finding in others}
    assert cause in last.cause
    assert "component=cloud-prod --tail=50" in last.fix
    text = render_lines(format_verdict(explanation))
    assert "Also          of unknown existence in its cloud" in text


@pytest.mark.parametrize(
    ("node", "messages"),
    [
        (READY, (make_shut_down(READY),)),  # the cloud is behind
        (READY, (make_unknown(READY),)),
        (LOST, (make_exists(LOST),)),
        (NEVER, (make_exists(NEVER), make_unknown(NEVER, account="other", reason=NEVER_SEEN))),
        (NEVER, ()),  # of a cloud without an account
    ],
)
def test_a_cloud_that_explains_nothing_is_not_mentioned(node: Node, messages: tuple[Event, ...]):
    assert not any(fault.startswith("instance-") for fault in list_faults(node, *messages))


def test_a_report_in_the_name_of_another_account_is_ignored():
    flow = make_flow("web-1", GONE)
    [about] = flow.objects
    forged = msgspec.structs.replace(about.messages[0], subject="talosccm.v1.cloud.other.instance.web-1")
    about = msgspec.structs.replace(about, messages=(forged,))
    last = explain(LOST, flow=msgspec.structs.replace(flow, objects=(about,))).verdict.findings[-1]
    assert (last.fault, "has reported nothing" in last.cause) == ("instance-unknown", True)
