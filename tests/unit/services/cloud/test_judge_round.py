"""An instance is gone only if its exact id is not found beside a witness, and nothing else has its name."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from libs.clouds.instances import CREDENTIAL_ANCHOR, Anchor, Deleted, Instance, NotFound, Unanswered
from libs.common.contract.events import (
    InstanceExists,
    InstanceGone,
    InstanceShutDown,
    InstanceUnknown,
)
from libs.common.contract.instances import InstanceAnchor
from services.cloud.core.judge_round import Round, judge_round
from services.cloud.core.node_table import CloudNode
from tests.clouds.cloud_rounds import (
    ACCOUNT,
    ANCHOR,
    BY_CREDENTIAL,
    CREDENTIAL,
    OTHER_CREDENTIAL,
    SILENCE,
    make_cloud_node,
    make_instance,
    make_round,
)

NODE = make_cloud_node(anchor=BY_CREDENTIAL)
ANCHORED = make_cloud_node()
NODE_OF = {"this Node's recorded anchor": ANCHORED}
GONE = {
    "another recorded Node's instance": make_round(NotFound()),
    "this Node's recorded anchor": make_round(NotFound(), witness=ANCHOR, asked_for=ANCHOR),
    "the cloud itself": make_round(Deleted(), witness=None),
}
WITNESSES = {
    "another recorded Node's instance": ("instance", "8"),
    "this Node's recorded anchor": ("anchor", "network/4711"),
    "the cloud itself": ("cloud", ""),
}
UNKNOWN: dict[str, tuple[Round, str]] = {
    "silence": (make_round(SILENCE), "no answer"),
    "another id was asked for": (make_round(NotFound(), instance_id="9"), "another instance"),
    "another instance came back": (make_round(make_instance("9")), "instance 9 instead"),
    "no witness": (make_round(NotFound(), witness=None), "neither"),
    "silent witness": (make_round(NotFound(), witness=SILENCE), "does not answer for the witness"),
    "witness is not found": (make_round(NotFound(), witness=NotFound()), "another project's"),
    "witness was deleted": (make_round(NotFound(), witness=Deleted()), "another project's"),
    "witness has another id": (make_round(NotFound(), witness=make_instance("9")), "another project's"),
    "witness of before": (make_round(NotFound(), witness_at=-5.0), "before the instance"),
    "witness is the instance": (
        make_round(NotFound(), witness=make_instance("7"), asked_for="7"), "no witness for itself"
    ),
    "anchor of no record": (
        make_round(NotFound(), witness=Anchor("network", "1"), asked_for=Anchor("network", "1")),
        "not the one that was recorded",
    ),
    "another credential for the instance": (
        make_round(NotFound(), credentials=(OTHER_CREDENTIAL, CREDENTIAL, CREDENTIAL)), "credential changed"
    ),
    "another credential for the witness": (
        make_round(NotFound(), credentials=(CREDENTIAL, OTHER_CREDENTIAL, CREDENTIAL)), "credential changed"
    ),
    "another credential for the name": (
        make_round(NotFound(), credentials=(CREDENTIAL, CREDENTIAL, OTHER_CREDENTIAL)), "credential changed"
    ),
    "another credential and found": (
        make_round(make_instance(), credentials=(OTHER_CREDENTIAL, CREDENTIAL, CREDENTIAL)),
        "credential changed",
    ),
    "name not asked": (make_round(NotFound(), names=None), "whether another instance has its name"),
    "silence about the name": (make_round(NotFound(), names=SILENCE), "has its name: no answer"),
    "name of before": (make_round(NotFound(), name_at=-5.0), "name was asked for before"),
    "deleted, and its name is not asked": (make_round(Deleted(), names=None), "has its name"),
    "namesake": (make_round(NotFound(), names=(make_instance("9"),)), "instance 9 has the Node's name"),
}  # fmt: skip


@pytest.mark.parametrize("witness", GONE)
def test_an_instance_is_gone_beside_a_witness(witness: str):
    report = judge_round(NODE_OF.get(witness, NODE), GONE[witness], ACCOUNT)
    assert isinstance(report, InstanceGone)
    assert (report.witness.kind, report.witness.id) == WITNESSES[witness]
    assert (report.account, report.name, report.node_uid, report.provider_id) == (
        "prod", "web-1", "uid-web-1", "hcloud://7"
    )  # fmt: skip
    assert report.credential_loaded_at == CREDENTIAL.loaded_at


@pytest.mark.parametrize("case", UNKNOWN)
def test_anything_less_proves_nothing(case: str):
    answers, reason = UNKNOWN[case]
    report = judge_round(NODE, answers, ACCOUNT)
    assert isinstance(report, InstanceUnknown)
    assert reason in report.reason


@pytest.mark.parametrize("witness", GONE)
def test_nothing_is_gone_that_the_account_has_never_seen_alive(witness: str):
    report = judge_round(make_cloud_node(is_recorded=False), GONE[witness], ACCOUNT)
    assert isinstance(report, InstanceUnknown)
    assert "never seen" in report.reason


@pytest.mark.parametrize("anchor", [ANCHOR, Anchor(CREDENTIAL_ANCHOR, "f2"), None])
def test_another_instance_is_a_witness_only_by_the_credential_that_was_recorded(anchor: Anchor | None):
    node = make_cloud_node(anchor=anchor)
    report = judge_round(node, GONE["another recorded Node's instance"], ACCOUNT)
    assert isinstance(report, InstanceUnknown)
    assert "only by the credential that was recorded" in report.reason


@pytest.mark.parametrize(
    ("answers", "is_absent"),
    [
        (make_round(NotFound(), witness=None), True),
        (make_round(NotFound(), witness=None, names=(make_instance("9"),)), False),
        (make_round(NotFound(), witness=None, names=SILENCE), False),
        (make_round(NotFound(), witness=None, names=None), False),
        (make_round(NotFound(), witness=None, name_at=-5.0), False),
        (make_round(SILENCE, witness=None), False),
    ],
)
def test_an_instance_of_another_account_is_absent_by_its_id_and_its_name(answers: Round, is_absent: bool):
    report = judge_round(make_cloud_node(is_recorded=False), answers, replace(ACCOUNT, anchor=ANCHOR))
    assert isinstance(report, InstanceUnknown)
    assert report.absent_from == (InstanceAnchor(kind="network", id="4711") if is_absent else None)


def test_an_anchor_that_was_not_recorded_is_no_witness():
    other = Anchor("network", "1")
    report = judge_round(ANCHORED, make_round(NotFound(), witness=other, asked_for=other), ACCOUNT)
    assert isinstance(report, InstanceUnknown)
    assert "not the one that was recorded" in report.reason


def test_only_the_exact_name_is_a_namesake():
    similar = (make_instance("9", "web-10"), make_instance("10", "WEB-1"))
    assert isinstance(judge_round(NODE, make_round(NotFound(), names=similar), ACCOUNT), InstanceGone)
    report = judge_round(NODE, make_round(NotFound(), names=(make_instance("9"),)), ACCOUNT)
    assert report.namesake == "9"


@pytest.mark.parametrize(("is_shut_down", "kind"), [(False, InstanceExists), (True, InstanceShutDown)])
def test_an_instance_that_is_found_needs_no_witness(is_shut_down: bool, kind: type):
    answers = make_round(make_instance(is_shut_down=is_shut_down), witness=None, names=None)
    assert type(judge_round(NODE, answers, ACCOUNT)) is kind


def is_proven(node: CloudNode, answers: Round) -> bool:
    """The rule once more, in the words of the specification."""
    parts = [part for part in (answers.instance, answers.witness, answers.name) if part is not None]
    if any(part.query.credential.generation != answers.credential.generation for part in parts):
        return False
    if answers.instance.instance_id != node.instance_id or answers.name is None:
        return False
    if isinstance(answers.name.answer, Unanswered) or any(i.name == node.name for i in answers.name.answer):
        return False
    if answers.name.query.asked_at < answers.instance.query.answered_at:
        return False
    if node.record is None:
        return False
    if isinstance(answers.instance.answer, Deleted):
        return True
    witness = answers.witness
    if not isinstance(answers.instance.answer, NotFound) or witness is None:
        return False
    if witness.query.asked_at < answers.instance.query.answered_at:
        return False
    if isinstance(witness.asked_for, str):
        found = isinstance(witness.answer, Instance) and witness.answer.id == witness.asked_for
        by_credential = InstanceAnchor(kind=CREDENTIAL_ANCHOR, id=answers.credential.fingerprint)
        return found and witness.asked_for != node.instance_id and node.record.anchor == by_credential
    recorded = node.record.anchor
    is_recorded = recorded is not None and (recorded.kind, recorded.id) == (
        witness.asked_for.kind, witness.asked_for.id
    )  # fmt: skip
    return is_recorded and witness.answer == witness.asked_for


INSTANCES = st.builds(make_instance, st.sampled_from("789"), st.sampled_from(["web-1", "web-2"]))
ANCHORS = st.sampled_from([ANCHOR, Anchor("network", "1"), Anchor("volume", "4711"), BY_CREDENTIAL])
ANSWERS: st.SearchStrategy[Any] = st.one_of(
    st.just(NotFound()), st.just(Deleted()), st.just(SILENCE), INSTANCES
)
CREDENTIALS = st.sampled_from([CREDENTIAL, CREDENTIAL, CREDENTIAL, OTHER_CREDENTIAL])


@given(
    st.builds(make_cloud_node, anchor=st.one_of(st.none(), ANCHORS), is_recorded=st.booleans()),
    st.builds(
        make_round, st.one_of(st.just(NotFound()), ANSWERS),
        instance_id=st.sampled_from("7779"),
        witness=st.one_of(st.none(), ANSWERS, ANCHORS),
        asked_for=st.one_of(st.sampled_from("789"), ANCHORS),
        witness_at=st.sampled_from([10.0, 10.0, -5.0]),
        name_at=st.sampled_from([20.0, 20.0, -5.0]),
        names=st.one_of(st.none(), st.just(SILENCE), st.tuples(), st.tuples(INSTANCES)),
        credentials=st.tuples(CREDENTIALS, CREDENTIALS, CREDENTIALS),
    ),
)  # fmt: skip
def test_gone_is_reported_exactly_where_the_rule_holds(node: CloudNode, answers: Round):
    report = judge_round(node, answers, ACCOUNT)
    assert isinstance(report, InstanceGone) == is_proven(node, answers)
