"""The certificate requests of the watcher: which ones and how many it publishes, and when."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.signing_request import SigningRequest, SigningRequestCondition
from services.watcher.core.kinds import CSR, MAX_PENDING_PER_REQUESTER
from services.watcher.core.store import Store
from tests import builders

APPROVED = SigningRequestCondition(type="Approved")
DENIED = SigningRequestCondition(type="Denied")


def a_store(*requests: SigningRequest) -> Store[SigningRequest]:
    store = Store(CSR)
    store.replace(requests, (), "1000")
    return store


def the_nth(number: int, *, node: str = "noisy", **fields) -> SigningRequest:
    """Filed so many seconds after the first."""
    return builders.make_request(
        f"csr-{node}-{number:03}",
        uid=f"{node}-{number}",
        node=node,
        created=builders.NOW + timedelta(seconds=number),
        resource_version=str(2000 + number),
        **fields,
    )


# ---- which are known


@pytest.mark.parametrize(
    "foreign",
    [
        builders.make_request(signer="kubernetes.io/kube-apiserver-client-kubelet"),
        builders.make_request(username="system:serviceaccount:kube-system:operator"),
        builders.make_request(username="system:node:"),
        builders.make_request("x" * 5000),
    ],
    ids=["another signer", "no node", "a node without a name", "a name that no subject can contain"],
)
def test_what_no_kubelet_asks_to_serve_with_is_none_of_our_business(foreign: SigningRequest):
    store = a_store(foreign)
    assert len(store) == 0
    assert store.put(foreign) == set()
    assert store.last_resource_version == 1000, "but it advances the version of the store"


def test_a_list_and_a_watch_hold_the_same_newest_of_a_noisy_requester_and_all_of_the_others():
    requests = [the_nth(number) for number in range(40)]
    quiet = the_nth(0, node="quiet")
    newest = {request.name for request in requests[-MAX_PENDING_PER_REQUESTER:]} | {quiet.name}
    assert set(a_store(quiet, *reversed(requests)).names()) == newest
    watched = a_store(quiet)
    for number, request in enumerate(requests):
        lost = (
            {requests[number - MAX_PENDING_PER_REQUESTER].name}
            if number >= MAX_PENDING_PER_REQUESTER
            else set()
        )
        assert watched.put(request) == {request.name} | lost
    assert set(watched.names()) == newest


def test_an_old_request_that_is_repeated_takes_no_newer_ones_place():
    store = a_store(*(the_nth(number) for number in range(1, MAX_PENDING_PER_REQUESTER + 1)))
    assert store.put(the_nth(0)) == set()
    assert store.get(the_nth(0).name) is None


def test_a_decided_request_is_known_beyond_the_newest_and_leaves_its_place():
    store = a_store(*(the_nth(number) for number in range(MAX_PENDING_PER_REQUESTER)))
    assert store.put(the_nth(3, conditions=(DENIED,))) == {the_nth(3).name}
    assert store.put(the_nth(50)) == {the_nth(50).name}, "no request is evicted"
    assert store.put(the_nth(51)) == {the_nth(51).name, the_nth(0).name}
    assert store.put(the_nth(0, conditions=(DENIED,))) == {the_nth(0).name}, "forgotten, but decided"
    assert len(store) == MAX_PENDING_PER_REQUESTER + 2


def test_who_only_bears_a_nodes_name_takes_no_place_of_that_node():
    store = a_store(the_nth(0))
    for number in range(1, MAX_PENDING_PER_REQUESTER + 2):
        store.put(the_nth(number, groups=("system:authenticated",)))
    assert store.get(the_nth(0).name) is not None
    assert store.get(the_nth(1).name) is None, "those have a bound, too"


def test_a_request_that_goes_leaves_its_place():
    store = a_store(*(the_nth(number) for number in range(MAX_PENDING_PER_REQUESTER)))
    store.remove(the_nth(0).name, "3000")
    store.mark_unreadable(the_nth(1).name, "no such field")
    assert store.put(the_nth(50)) | store.put(the_nth(51)) == {the_nth(50).name, the_nth(51).name}
    assert store.last_resource_version == 3000


steps = st.lists(
    st.tuples(st.sampled_from(["file", "decide", "delete", "list"]), st.integers(0, 39), st.booleans()),
    max_size=120,
)


@given(steps)
def test_whatever_happens_at_most_the_newest_of_each_wait_and_news_name_what_changed(happenings):
    store, truth = a_store(), dict[str, SigningRequest]()
    for version, (step, number, noisy) in enumerate(happenings, start=3000):
        node = "noisy" if noisy else "other"
        before = {name: store.get(name) for name in store.names()}
        decided = (APPROVED,) if step == "decide" else ()
        request = the_nth(number, node=node, conditions=decided)
        if step == "list":
            news = store.replace(list(truth.values()), (), str(version))
        elif step == "delete":
            truth.pop(request.name, None)
            store.remove(request.name, str(version))
            news = {request.name} & before.keys()
        else:
            truth[request.name] = request
            news = store.put(request)
        after = {name: store.get(name) for name in store.names()}
        assert news == {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)}
        assert after.items() <= truth.items()
        for each in ("noisy", "other"):
            waiting = sorted(n for n, r in after.items() if r and r.is_pending and r.node_name == each)
            all_waiting = sorted(n for n, r in truth.items() if r.is_pending and r.node_name == each)
            assert len(waiting) <= MAX_PENDING_PER_REQUESTER
            if step == "list":
                assert waiting == all_waiting[-MAX_PENDING_PER_REQUESTER:]
        assert {n for n, r in truth.items() if not r.is_pending} == {
            n for n, r in after.items() if r and not r.is_pending
        }
