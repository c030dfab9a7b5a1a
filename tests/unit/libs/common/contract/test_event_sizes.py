"""How large a message may be."""

import pytest

from libs.common.contract.events import MAX_EVENT_BYTES, EventError, encode
from libs.common.contract.machine import MachineFault
from tests.builders import make_node, make_node_observed, make_unreachable


def largest_that_can_be_observed() -> int:
    """Characters of an annotation."""
    fits, does_not = 0, MAX_EVENT_BYTES
    while does_not - fits > 1:
        middle = (fits + does_not) // 2
        try:
            encode(make_node_observed(make_node(annotations={"a": "x" * middle})))
            fits = middle
        except EventError:
            does_not = middle
    return fits


def test_a_node_that_can_be_observed_can_be_said_to_be_unreachable_however_large_it_is():
    node = make_node(annotations={"a": "x" * largest_that_can_be_observed()})
    fault = MachineFault(kind="invalid", step="facts", message="m" * 1000)
    assert len(encode(make_unreachable(node, fault=fault))) <= MAX_EVENT_BYTES
    with pytest.raises(EventError):
        encode(make_node_observed(make_node(annotations={"a": "x" * MAX_EVENT_BYTES})))
