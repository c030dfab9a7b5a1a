"""How a machine is lost, by the last messages about its Node."""

import pytest

from libs.common.contract.events import InstanceReport
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
