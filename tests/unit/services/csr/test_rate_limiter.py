"""How much one node's requests may cost."""

from hypothesis import given
from hypothesis import strategies as st

from services.csr.core.pending_requests import BURST, REFILL_SECONDS, NodeRateLimiter


def test_a_node_has_a_burst_and_one_more_each_minute_and_others_have_their_own():
    budget = NodeRateLimiter()
    for _ in range(BURST):
        assert budget.seconds_until_allowed("web-1", 0.0) == 0.0
        budget.record_write("web-1", 0.0)
    assert budget.seconds_until_allowed("web-1", 0.0) == REFILL_SECONDS
    assert budget.seconds_until_allowed("web-2", 0.0) == 0.0
    assert budget.seconds_until_allowed("web-1", REFILL_SECONDS) == 0.0
    budget.record_write("web-1", REFILL_SECONDS)
    assert budget.seconds_until_allowed("web-1", REFILL_SECONDS) == REFILL_SECONDS


@given(st.lists(st.floats(0, 120), min_size=1, max_size=60))
def test_whatever_a_node_asks_for_it_gets_no_more_than_its_budget(pauses: list[float]):
    budget, at, spent = NodeRateLimiter(), 0.0, 0
    for pause in pauses:
        at += pause
        if budget.seconds_until_allowed("web-1", at) == 0.0:
            budget.record_write("web-1", at)
            spent += 1
    assert spent <= BURST + at / REFILL_SECONDS
