"""The kinds of machine faults, and how a machine is lost, by the last messages about its Node."""

from typing import get_args

import pytest

from libs.common.contract.events import InstanceReport
from libs.common.contract.machine import FAULT_KINDS, FaultKind
from libs.common.contract.machine_loss import MachineLoss, find_machine_loss
from tests.instance_reports import (
    ACCOUNT,
    make_exists,
    make_gone,
    make_record,
    make_recorded_node,
    make_shut_down,
    make_unknown,
)


def test_every_kind_of_fault_has_a_row_with_a_reason_of_its_own():
    assert set(FAULT_KINDS) == set(get_args(FaultKind))
    reasons = {each.block_reason for each in FAULT_KINDS.values()}
    assert len(reasons) == len(FAULT_KINDS)
    assert all(reason.isalnum() and reason[0].isupper() for reason in reasons)


def test_a_machine_that_answers_or_that_the_client_cannot_query_is_not_silent():
    silent = [each for each in FAULT_KINDS.values() if each.is_silent]
    assert all(each.is_unreachable and not each.depends_on_client for each in silent)


NODE = make_recorded_node()
EXISTS, OFF, UNKNOWN = make_exists(NODE), make_shut_down(NODE), make_unknown(NODE)
GONE, GONE_ELSEWHERE = make_gone(NODE), make_gone(NODE, account="other")
IS_OFF, IS_GONE = MachineLoss(kind="off", account=ACCOUNT), MachineLoss(kind="gone", account=ACCOUNT)
SILENT = MachineLoss(kind="silent")


@pytest.mark.parametrize(
    ("reports", "answers", "loss"),
    [
        ((), None, None),
        ((), True, None),
        ((), False, SILENT),
        ((EXISTS,), None, None),
        ((EXISTS,), False, SILENT),
        ((UNKNOWN,), None, None),
        ((OFF,), None, IS_OFF),
        ((OFF,), False, IS_OFF),
        ((OFF,), True, None),
        ((GONE,), None, IS_GONE),
        ((GONE,), False, IS_GONE),
        ((GONE,), True, IS_GONE),
        ((GONE_ELSEWHERE,), None, None),
        ((GONE_ELSEWHERE,), False, SILENT),
        ((GONE_ELSEWHERE, OFF), None, IS_OFF),
        ((GONE, make_shut_down(NODE, account="other")), None, MachineLoss(kind="off", account="other")),
        ((GONE, make_shut_down(NODE, account="other")), False, MachineLoss(kind="off", account="other")),
        ((GONE, make_shut_down(NODE, account="other")), True, None),
    ],
)
def test_a_machine_is_lost_by_reports_and_by_metadata(
    reports: tuple[InstanceReport, ...], answers: bool | None, loss: MachineLoss | None
):
    record = make_record(NODE)
    assert find_machine_loss(reports, record, answers=answers) == loss
    assert find_machine_loss(reversed(reports), record, answers=answers) == loss


@pytest.mark.parametrize(("answers", "loss"), [(None, None), (True, None), (False, SILENT)])
def test_without_a_record_no_account_shows_that_the_instance_is_gone(
    answers: bool | None, loss: MachineLoss | None
):
    assert find_machine_loss([GONE], None, answers=answers) == loss
