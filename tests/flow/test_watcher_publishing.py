"""What /readyz says of observations that could not be published, on the bus of the all-in-one."""

import asyncio

from libs.common.contract.node import Node
from services.watcher.kinds import NODE
from tests.builders import make_node
from tests.bus_actors import wait_until
from tests.watcher_actors import PublisherActor, run_publisher


async def test_an_outage_is_over_once_all_that_failed_was_said_whoever_rests_with_news():
    async with run_publisher(NODE, labelled("failing", "new"), labelled("busy", "new")) as actor:

        def was_said(name: str, label: str) -> bool:
            return actor.flow.observed(name).node.metadata.labels == {"is": label}

        stream, actor.server.stream = actor.server.stream, None
        actor.put(labelled("failing", "changed"))
        await wait_until(lambda: bool(actor.publisher.problems()), "its rest is over, and it fails")
        actor.server.stream = stream
        actor.put(labelled("busy", "changed"))
        await wait_until(lambda: was_said("busy", "changed"))
        actor.put(labelled("busy", "changed again"))
        actor.put(labelled("failing", "changed again"))
        await wait_until(lambda: was_said("failing", "changed again"))
        assert not was_said("busy", "changed again")
        assert actor.publisher.problems() == ()


async def test_a_timer_that_fires_while_the_publisher_ends_starts_nothing():
    started: list[bool] = []

    async def end_slowly(actor: PublisherActor) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            actor.put(labelled("web", "changed"))  # as a timer does while the last publish ends
            started.append(actor.publisher._queue.get() is None)
            raise

    async with run_publisher(NODE, labelled("web", "new")) as actor:
        actor.publisher._cooldowns.end("web")
        tasks = actor.publisher._tasks
        assert tasks is not None
        tasks.create_task(end_slowly(actor))
        await asyncio.sleep(0)
    assert started == [False]


def labelled(name: str, label: str) -> Node:
    return make_node(name, uid=name, labels={"is": label}, taints=())
