"""Events of a paused publisher that knows only a former stream, and whose expected sequence fits."""

import time
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from libs.common.bus.protocol import Bus
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import Event, NodeGone, NodeObserved, SnapshotComplete
from libs.common.contract.subjects import FLOW
from tests.builders import make_node
from tests.bus_actors import run_during, wait_until
from tests.watcher_actors import ScriptedNodes, WatcherFlow, make_watcher

Connect = Callable[..., Awaitable[Bus]]


@pytest.mark.parametrize("kind", [NodeObserved, NodeGone, SnapshotComplete])
async def test_the_leader_publishes_again_what_a_message_for_a_former_stream_replaces(
    connect: Connect, kind: type[Event]
):
    script, flow = ScriptedNodes(make_node("stays"), make_node("goes", uid="uid-goes")), WatcherFlow()
    async with (
        flow.follow(await connect("flow")),
        run_during(make_watcher(await connect(), script.source).run()),
    ):
        await flow.wait_for(lambda f: f.snapshots())
        script.delete("goes")
        await flow.wait_for(lambda f: isinstance(f.last("goes"), NodeGone))
        last = {message.subject: message for message in flow.messages}.values()
        valid = next(message for message in last if isinstance(message.event, kind))
        assert isinstance(valid.event, NodeObserved | NodeGone | SnapshotComplete)
        event = msgspec.structs.replace(valid.event, stream_id="the former one")
        late = await (await connect()).publish(event, expected_sequence=valid.sequence)
        await flow.wait_for(lambda f: f.messages[-1].sequence >= late, "the stream takes it")
        later = StreamCache(clock=time.monotonic)
        async with run_during((await connect("csr")).follow("csr", f"{FLOW}.>", later)):
            await wait_until(
                lambda: isinstance(later.get_event(valid.subject), kind), "the leader publishes its own again"
            )
            assert later.sequence > late
