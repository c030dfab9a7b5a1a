"""Who waits for pod CIDRs, and which waits have become worth telling."""

from services.ipam.pool_selection import Pool
from services.ipam.waiting_nodes import LONG_WAIT_SECONDS, WaitingNode, WaitingNodes

POOLS = (Pool("web", 4, "10.244.0.0/24", 24),)


def a_wait(
    name: str = "web-1", *, reason: str = "no facts", at: float = 0.0, **fields: object
) -> WaitingNode:
    said = {"uid": f"uid-{name}", "outcome": "waiting", "reason": reason, "waiting_since": at} | fields
    return WaitingNode(name=name, **said)  # type: ignore[arg-type]


def test_a_wait_for_the_same_goes_on_and_is_told_once_when_it_is_long():
    waiting = WaitingNodes()
    waiting.add(a_wait(at=0.0))
    waiting.add(a_wait(at=LONG_WAIT_SECONDS - 1))
    assert list(waiting.take_unreported(LONG_WAIT_SECONDS - 0.1)) == []
    assert [node.waiting_since for node in waiting.take_unreported(LONG_WAIT_SECONDS)] == [0.0]
    assert list(waiting.take_unreported(LONG_WAIT_SECONDS + 1)) == []


def test_another_reason_is_another_wait_and_so_is_another_node_of_that_name():
    waiting = WaitingNodes()
    waiting.add(a_wait(at=0.0))
    assert len(list(waiting.take_unreported(LONG_WAIT_SECONDS))) == 1
    waiting.add(a_wait(reason="no room", at=LONG_WAIT_SECONDS))
    assert list(waiting.take_unreported(LONG_WAIT_SECONDS + 1)) == []
    assert [node.reason for node in waiting.take_unreported(2 * LONG_WAIT_SECONDS)] == ["no room"]
    waiting.add(a_wait(reason="no room", at=100.0, uid="another"))
    assert list(waiting.take_unreported(100.0 + LONG_WAIT_SECONDS - 1)) == []


def test_one_who_is_served_and_comes_to_wait_again_is_told_of_again():
    waiting = WaitingNodes()
    waiting.add(a_wait())
    assert len(list(waiting.take_unreported(LONG_WAIT_SECONDS))) == 1
    assert waiting.remove("web-1") is not None
    assert waiting.remove("web-1") is None
    waiting.add(a_wait(at=100.0))
    assert len(list(waiting.take_unreported(100.0 + LONG_WAIT_SECONDS))) == 1


def test_those_who_want_room_in_the_same_pools_are_one_group():
    waiting = WaitingNodes()
    other = (*POOLS, Pool("rest", 6, "fd00::/64", 80))
    waiting.add(a_wait("web-1", full_pools=POOLS))
    waiting.add(a_wait("web-2", full_pools=POOLS))
    waiting.add(a_wait("web-3", full_pools=other))
    waiting.add(a_wait("web-4"))
    assert waiting.group_by_full_pools() == {POOLS: ["web-1", "web-2"], other: ["web-3"]}
