"""The queue of a reconciler: each name once, in order, and never lost."""

import asyncio

from libs.common.service.waiting_objects import NameQueue
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


async def test_a_discarded_name_is_not_reconciled():
    queue, done = NameQueue(), []

    async def reconcile(name: str) -> None:
        done.append(name)

    queue.add(["a", "b"])
    queue.discard("a")
    queue.discard("unknown")
    working = asyncio.create_task(queue.work(reconcile))
    await wait_until(lambda: done == ["b"])
    queue.add(["c"])
    queue.clear()
    queue.add(["d"])
    await wait_until(lambda: done == ["b", "d"])
    working.cancel()
