"""What happens to the parts of the hand-over: changes of the cluster, and a limited number of faults."""

from collections.abc import Iterator

from msgspec.structs import replace

from tests.model.handover_state import LEADING, NO_WATCHER, Follower, State, Stream
from tests.model.handover_stream import publish, replay
from tests.model.search import Step


def list_faults(state: State) -> Iterator[Step[State]]:
    """Yield every change of the cluster and every fault that is still possible."""
    cluster = state.cluster
    if not cluster.changed_at:
        changed = replace(cluster, changed_at=cluster.version + 1)
        yield Step(f"n-1 changes (version {changed.version})", replace(state, cluster=changed), False)
    if not cluster.deleted_at:
        deleted = replace(cluster, deleted_at=cluster.version + 1)
        yield Step(f"n-2 is deleted (version {deleted.version})", replace(state, cluster=deleted), False)
    yield from _list_renewals(state)
    if state.faults:
        yield from _list_limited_faults(replace(state, faults=state.faults - 1))


def _list_limited_faults(state: State) -> Iterator[Step[State]]:
    """Yield the faults; the state counts one less already."""
    if state.holder != NO_WATCHER:
        name = f"watcher {state.holder + 1}"
        yield Step(
            f"{name} is paused until its Lease expires, and resumes", replace(state, holder=NO_WATCHER), False
        )
        if state.cut == NO_WATCHER:
            yield Step(f"{name} loses its connection to NATS", replace(state, cut=state.holder), False)
    wiped = Stream(number=state.stream.number + 1)
    yield Step("the stream is wiped and created again", replace(state, stream=wiped), False)
    if state.follower.stream != state.stream.number:
        return
    restarted = replay(Follower(stream=state.stream.number), state.stream, state.rules)
    yield Step("the follower restarts and replays the stream", replace(state, follower=restarted), False)
    replayed = replay(state.follower, state.stream, state.rules)
    yield Step("the follower reconnects and replays the stream", replace(state, follower=replayed), False)


def _list_renewals(state: State) -> Iterator[Step[State]]:
    """Yield the renewal that moves a Leading to the end of the stream."""
    leading = state.stream.valid(LEADING)
    if not state.renewals or leading is None or leading.sequence == state.stream.last_sequence:
        return
    if state.holder in (NO_WATCHER, state.cut):
        return
    if state.watchers[state.holder].epoch == leading.message.epoch:
        after = replace(publish(state, leading.message), renewals=state.renewals - 1)
        yield Step(f"watcher {state.holder + 1} renews its Lease and publishes Leading", after, False)
