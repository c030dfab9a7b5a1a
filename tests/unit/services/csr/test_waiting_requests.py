"""What waits for what, how long, and how much one node's requests may cost."""

from hypothesis import given
from hypothesis import strategies as st

from services.csr import waiting_requests
from services.csr.rate_limiter import BURST, REFILL_SECONDS, NodeRateLimiter
from services.csr.waiting_requests import LONG_WAIT_SECONDS, WaitingRequest, WaitingRequests


def waits(
    name: str = "csr-1", *nodes: str, reason: str = "addresses", requester: str = "web-1"
) -> WaitingRequest:
    return WaitingRequest(
        name=name,
        uid=f"uid-{name}",
        requester=requester,
        reason=reason,
        message="not there yet",
        nodes=frozenset(nodes or (requester,)),
    )


def untold(known: WaitingRequests, at: float) -> list[str]:
    return [request.name for request in known.take_unreported(at)]


def test_a_node_that_changes_finds_the_requests_that_wait_on_it():
    known = WaitingRequests()
    known.add(waits("csr-1", "web-1", "web-2"), 0.0)
    known.add(waits("csr-2", "web-2"), 0.0)
    assert known.find_by_node("web-1") == {"csr-1"}
    assert known.find_by_node("web-2") == {"csr-1", "csr-2"}
    known.add(waits("csr-1", "web-1"), 1.0)  # the other node has nothing to do with it any more
    assert known.find_by_node("web-2") == {"csr-2"}
    known.remove("csr-2")
    known.finish("csr-1", "web-1")
    assert not known.by_name
    assert known.find_by_node("web-1") == known.find_by_node("web-2") == frozenset()


def test_a_long_wait_is_told_once_until_its_reason_changes():
    known = WaitingRequests()
    known.add(waits(), 0.0)
    assert untold(known, LONG_WAIT_SECONDS - 1) == []
    assert untold(known, LONG_WAIT_SECONDS) == ["csr-1"]
    known.add(waits(), LONG_WAIT_SECONDS + 1)
    assert untold(known, 3 * LONG_WAIT_SECONDS) == []
    known.add(waits(reason="machine"), 100.0)
    assert untold(known, 101.0) == []
    assert untold(known, 100.0 + LONG_WAIT_SECONDS) == ["csr-1"]


def test_a_wait_goes_on_with_the_next_request_of_the_same_node():
    known = WaitingRequests()
    known.add(waits("csr-1"), 0.0)
    known.remove("csr-1")  # a newer one has its place
    known.add(waits("csr-2"), 20.0)
    assert untold(known, LONG_WAIT_SECONDS) == ["csr-2"]


def test_a_node_that_comes_again_has_not_waited_yet():
    known = WaitingRequests()
    known.add(waits("csr-1"), 0.0)
    assert untold(known, LONG_WAIT_SECONDS) == ["csr-1"]
    known.on_node_gone("web-1")
    known.add(waits("csr-1"), 100.0)
    assert untold(known, 101.0) == []
    assert untold(known, 100.0 + LONG_WAIT_SECONDS) == ["csr-1"]


def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr(waiting_requests, "MAX_WAITING", 10)
    known = WaitingRequests()
    for number in range(100):
        known.add(waits(f"csr-{number}", requester=f"web-{number}"), 0.0)
    assert list(known.by_name) == [f"csr-{number}" for number in range(90, 100)]
    assert len(known._names_by_node) == len(known._waits_by_requester) == 10


def test_a_wait_that_ends_by_itself_is_due():
    known = WaitingRequests()
    known.add(WaitingRequest(**{**_fields(waits()), "retry_at": 60.0}), 0.0)
    known.add(waits("csr-2"), 0.0)
    assert known.find_due(59.0) == []
    assert known.find_due(60.0) == ["csr-1"]


def _fields(request: WaitingRequest) -> dict:
    return {name: getattr(request, name) for name in request.__struct_fields__}


# ---- the budget of a node


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
