"""What waits for what, and for how long."""

import asyncio

import pytest

from libs.common.service import waiting_objects
from libs.common.service.waiting_objects import LONG_WAIT_SECONDS, NameQueue, WaitingObject, WaitingObjects
from tests.bus_actors import wait_until


async def test_each_name_is_reconciled_once_in_order_of_arrival():
    queue, done = NameQueue(), []

    async def reconcile(name: str) -> None:
        done.append(name)
        if name == "a" and done.count("a") == 1:
            queue.add(["b", "a"])  # a change during the work

    queue.add(["a", "c", "a"])
    working = asyncio.create_task(queue.work(reconcile))
    await wait_until(lambda: len(done) == 4)
    working.cancel()
    assert done == ["a", "c", "b", "a"]


async def test_a_name_that_was_cleared_is_not_reconciled():
    queue, done = NameQueue(), []

    async def reconcile(name: str) -> None:
        done.append(name)

    working = asyncio.create_task(queue.work(reconcile))
    queue.add(["c"])
    queue.clear()
    queue.add(["d"])
    await wait_until(lambda: done == ["d"])
    working.cancel()


class Request(WaitingObject, frozen=True, kw_only=True):
    """Its Node waits until the reason changes."""

    requester: str = "web-1"
    nodes: tuple[str, ...] = ()
    has_event: bool = True

    @property
    def node(self) -> str:
        return self.requester

    @property
    def causes(self) -> tuple[str, ...]:
        return self.nodes

    @property
    def episode(self) -> str:
        return self.reason

    @property
    def is_reported(self) -> bool:
        return self.has_event


def request(name: str = "csr-1", *nodes: str, reason: str = "addresses", **fields: object) -> Request:
    return Request(name=name, uid=f"uid-{name}", reason=reason, nodes=nodes, **fields)  # type: ignore[arg-type]


def unreported(waiting: WaitingObjects[Request], at: float) -> list[str]:
    return [wait.name for wait in waiting.take_unreported(at)]


@pytest.fixture
def waiting() -> WaitingObjects[Request]:
    return WaitingObjects()


def test_a_change_finds_the_objects_that_wait_for_it(waiting: WaitingObjects[Request]):
    waiting.add(request("csr-1", "web-1", "web-2"), 0.0)
    waiting.add(request("csr-2", "web-2"), 0.0)
    assert waiting.find_by_cause("web-1") == ["csr-1"]
    assert waiting.find_by_cause("web-2") == ["csr-1", "csr-2"]
    waiting.add(request("csr-1", "web-1"), 1.0)  # the other node has nothing to do with it any more
    assert waiting.find_by_cause("web-2") == ["csr-2"]
    assert waiting.remove("csr-2") == request("csr-2", "web-2")
    waiting.finish("csr-1", "web-1")
    assert waiting.remove("csr-1") is None
    assert not waiting.by_name
    assert not waiting.by_cause


def test_a_long_wait_is_reported_once_until_its_reason_changes(waiting: WaitingObjects[Request]):
    waiting.add(request(), 0.0)
    assert unreported(waiting, LONG_WAIT_SECONDS - 1) == []
    assert unreported(waiting, LONG_WAIT_SECONDS) == ["csr-1"]
    waiting.add(request(), LONG_WAIT_SECONDS + 1)
    assert waiting.waiting_seconds("web-1", 60.0) == 60.0
    assert unreported(waiting, 3 * LONG_WAIT_SECONDS) == []
    waiting.add(request(reason="machine"), 100.0)
    assert unreported(waiting, 101.0) == []
    assert unreported(waiting, 100.0 + LONG_WAIT_SECONDS) == ["csr-1"]


def test_a_wait_continues_with_the_next_object_of_the_same_node(waiting: WaitingObjects[Request]):
    waiting.add(request("csr-1"), 0.0)
    waiting.remove("csr-1")  # a newer one has its place
    waiting.add(request("csr-2"), 20.0)
    assert unreported(waiting, LONG_WAIT_SECONDS) == ["csr-2"]


@pytest.mark.parametrize("ends", ["finish", "gone"])
def test_a_wait_that_has_ended_starts_again_from_zero(waiting: WaitingObjects[Request], ends: str):
    waiting.add(request(), 0.0)
    assert unreported(waiting, LONG_WAIT_SECONDS) == ["csr-1"]
    if ends == "finish":
        waiting.finish("csr-1", "web-1")
    else:
        waiting.end_wait_of("web-1")
    assert waiting.waiting_seconds("web-1", 90.0) == 0.0
    waiting.add(request(), 100.0)
    assert unreported(waiting, 101.0) == []
    assert unreported(waiting, 100.0 + LONG_WAIT_SECONDS) == ["csr-1"]


def test_another_node_of_that_name_has_not_waited_yet():
    waiting: WaitingObjects[WaitingObject] = WaitingObjects()
    waiting.add(WaitingObject(name="web-1", uid="uid-1", reason="no room"), 0.0)
    waiting.add(WaitingObject(name="web-1", uid="uid-2", reason="no room"), 50.0)
    assert list(waiting.take_unreported(60.0)) == []


def test_an_object_that_gets_no_event_is_not_taken(waiting: WaitingObjects[Request]):
    waiting.add(request(has_event=False), 0.0)
    assert unreported(waiting, LONG_WAIT_SECONDS) == []


def test_what_waits_is_bounded(waiting: WaitingObjects[Request], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waiting_objects, "MAX_WAITING", 10)
    for number in range(100):
        waiting.add(request(f"csr-{number}", f"web-{number}", requester=f"web-{number}"), 0.0)
    assert list(waiting.by_name) == [f"csr-{number}" for number in range(90, 100)]
    assert len(waiting.by_cause) == len(waiting._episodes) == 10


def test_a_wait_that_ends_by_itself_is_due(waiting: WaitingObjects[Request]):
    waiting.add(request(retry_at=60.0), 0.0)
    waiting.add(request("csr-2"), 0.0)
    assert waiting.find_due(59.0) == []
    assert [wait.name for wait in waiting.find_due(60.0)] == ["csr-1"]
