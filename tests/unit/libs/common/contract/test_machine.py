"""The kinds of machine faults."""

from typing import get_args

from libs.common.contract.machine import FAULT_KINDS, FaultKind


def test_every_kind_of_fault_has_a_row_with_a_reason_of_its_own():
    assert set(FAULT_KINDS) == set(get_args(FaultKind))
    reasons = {each.block_reason for each in FAULT_KINDS.values()}
    assert len(reasons) == len(FAULT_KINDS)
    assert all(reason.isalnum() and reason[0].isupper() for reason in reasons)


def test_a_machine_that_answers_or_that_the_client_cannot_query_is_not_silent():
    silent = [each for each in FAULT_KINDS.values() if each.is_silent]
    assert all(each.is_unreachable and not each.depends_on_client for each in silent)
