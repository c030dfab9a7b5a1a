"""How stream and follower apply a message; changes of the cluster, and a limited number of faults."""

from collections.abc import Iterator

from msgspec.structs import replace

from tests.model.handover_state import (
    LEADING,
    NO_WATCHER,
    NODES,
    SNAPSHOT,
    Follower,
    Message,
    OutgoingMessage,
    Rules,
    State,
    Stored,
    Stream,
)
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


def is_accepted(stream: Stream, sent: OutgoingMessage, rules: Rules) -> bool:
    """Return whether the expected sequence is that of the stream."""
    expects = rules.publishes_with_expected_sequence
    return not expects or sent.expected == stream.sequence_of(sent.message.subject)


def publish(state: State, message: Message) -> State:
    """Return the state after the stream took the message; a fast follower has received it."""
    stream, follower = _store(state.stream, message), state.follower
    if not state.is_follower_slow and follower.stream == stream.number:
        (last,) = stream.list_after(stream.last_sequence - 1)
        follower = catch_up(apply(follower, last, state.rules))
    return replace(state, stream=stream, follower=follower)


def _store(stream: Stream, message: Message) -> Stream:
    """Return the stream with the message in place of the last one of its subject."""
    is_own = message.stream == stream.number
    sequence = stream.last_sequence + 1
    stored = Stored(
        message=message,
        sequence=sequence,
        is_fenced=is_own and message.epoch < stream.greatest_epoch,
        replaced=None if is_own else stream.known(message.subject),
    )
    before, after = stream.stored[: message.subject], stream.stored[message.subject + 1 :]
    return replace(
        stream,
        last_sequence=sequence,
        greatest_epoch=max(stream.greatest_epoch, message.epoch) if is_own else stream.greatest_epoch,
        stored=(*before, stored, *after),
    )


def apply(follower: Follower, stored: Stored, rules: Rules) -> Follower:
    """Return the follower with the next message: `StreamCache.apply`."""
    message = stored.message
    follower = replace(follower, sequence=max(follower.sequence, stored.sequence))
    if rules.other_stream_voids_messages and message.stream != follower.stream:
        return follower
    if rules.followers_ignore_former_leaders and message.epoch < follower.epoch:
        return follower
    follower = replace(follower, epoch=max(follower.epoch, message.epoch))
    if message.subject == LEADING:
        return follower
    if message.subject == SNAPSHOT and rules.snapshot_waits_until_nothing_is_pending:
        return replace(follower, snapshot=stored)
    return _put(follower, stored)


def catch_up(follower: Follower) -> Follower:
    """Return the follower after nothing was pending for it: `StreamCache.mark_caught_up`."""
    if follower.snapshot is None:
        return follower
    return replace(_put(follower, follower.snapshot), snapshot=None)


def _put(follower: Follower, stored: Stored) -> Follower:
    message = stored.message
    before, after = follower.table[: message.subject], follower.table[message.subject + 1 :]
    return replace(follower, table=(*before, stored, *after))


def replay(follower: Follower, stream: Stream, rules: Rules) -> Follower:
    """Return the follower after a replay of the stream; its table is kept where the stream still has it.

    A fenced deletion drops the Node that it has replaced in the stream.
    """
    replayed = set()
    follower = replace(follower, snapshot=None)
    for stored in stream.list_after(0):
        replayed.add(stored.message.subject)
        kept = None if stored.message.subject == LEADING else follower.table[stored.message.subject]
        is_void = (
            rules.followers_ignore_former_leaders
            and stored.message.stream == follower.stream
            and stored.message.epoch < follower.epoch
        )
        if is_void and not stored.message.exists and kept is not None and _is_deletion_of(kept, stored):
            replayed.discard(stored.message.subject)
        follower = apply(follower, stored, rules)
    follower = catch_up(follower)
    table = tuple(kept if subject in replayed else None for subject, kept in enumerate(follower.table))
    return replace(follower, table=table)


def _is_deletion_of(kept: Stored, void: Stored) -> bool:
    in_order = kept.sequence < void.sequence and kept.message.epoch <= void.message.epoch
    return void.message.subject in NODES and in_order
