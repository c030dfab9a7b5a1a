"""How stream and follower apply a message, and what a watcher decides; changes of the cluster, and faults.

The rules of a watcher are those of `publish_decision`, `ordered_publisher` and `leader_epoch`.
"""

from collections.abc import Iterator
from enum import Enum

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
    Watcher,
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


# ---- a watcher


class Conflict(Enum):
    """The outcome of a message that the stream rejected."""

    PUBLISHED = "published before"
    RESENT = "newer, so it is sent again"
    DROPPED = "not newer, so it is dropped"


def needs_round(watcher: Watcher, stream: Stream) -> bool:
    """Return whether the watcher must begin a round: another stream, epoch or leader than its own."""
    is_current = watcher.epoch > 0 and watcher.stream == stream.number
    return watcher.as_of > 0 and (not is_current or is_deposed(watcher, stream))


def is_deposed(watcher: Watcher, stream: Stream) -> bool:
    """Return whether another leader has published with a higher epoch."""
    return watcher.epoch > 0 and (watcher.is_rejected or stream.greatest_epoch > watcher.epoch)


def start_round(state: State, number: int) -> Watcher:
    """Return the watcher with a token for the stream, and its Leading to publish."""
    watcher, stream, rules = state.watchers[number], state.stream, state.rules
    epoch = watcher.epoch
    if epoch == 0 or is_deposed(watcher, stream):
        epoch = 1 + max(epoch, stream.greatest_epoch, state.transitions)
        if not rules.new_leader_has_new_epoch:
            epoch = 1
    started = replace(
        watcher,
        stream=stream.number,
        epoch=epoch,
        is_rejected=False,
        listed_at=0,
        unpublished=frozenset({LEADING}),
        in_flight=None,
    )
    return started if rules.round_follows_own_leading else add_all(started, state)


def add_all(watcher: Watcher, state: State) -> Watcher:
    """Return the watcher with the Nodes of its store and of the stream in its round, and the snapshot."""
    in_store = {node for node in NODES if state.cluster.node_as_of(node, watcher.as_of)}
    in_stream = {node for node in NODES if state.stream.known(node) is not None}
    added = frozenset(in_store | in_stream | {SNAPSHOT})
    return replace(watcher, listed_at=watcher.as_of, unpublished=watcher.unpublished | added)


def decide_node(state: State, number: int, node: int) -> Message | None:
    """Return what the watcher must publish about a Node, None if nothing."""
    watcher, published = state.watchers[number], _known(state, node)
    version = state.cluster.node_as_of(node, watcher.as_of)
    if version:
        return _decide_present(watcher, node, version, published)
    return _decide_absent(watcher, node, published, state)


def must_repeat_snapshot(state: State, number: int) -> bool:
    """Return whether a message for another stream has replaced the snapshot of a complete round."""
    watcher, stream = state.watchers[number], state.stream
    is_complete = watcher.listed_at > 0 and not watcher.unpublished
    is_replaced = stream.known(SNAPSHOT) is not None and stream.valid(SNAPSHOT) is None
    return state.rules.leader_corrects_other_streams and is_complete and is_replaced


def _known(state: State, node: int) -> Stored | None:
    """Return what the watchers know of a Node; fenced if they know that followers ignore the last message."""
    known, rules = state.stream.known(node), state.rules
    if known is None:
        return None
    is_replaced = rules.leader_corrects_other_streams and state.stream.valid(node) is None
    is_late = rules.leader_corrects_former_leaders and known.is_fenced
    return replace(known, is_fenced=is_replaced or is_late)


def _decide_present(watcher: Watcher, node: int, version: int, published: Stored | None) -> Message | None:
    mine = Message(subject=node, stream=watcher.stream, epoch=watcher.epoch, version=version)
    if published is None:
        return mine
    theirs = published.message
    if theirs.order > mine.order:
        return None
    is_same = theirs.exists and theirs.version == version
    return None if is_same and not published.is_fenced and node not in watcher.unpublished else mine


def _decide_absent(watcher: Watcher, node: int, published: Stored | None, state: State) -> Message | None:
    corrects = state.rules.leader_corrects_former_leaders
    if published is None or not (published.message.exists or published.is_fenced):
        return None
    gone = Message(
        subject=node, stream=watcher.stream, epoch=watcher.epoch, version=watcher.as_of, exists=False
    )
    if published.message.order > gone.order:
        return None
    is_own = node in watcher.unpublished or published.message.epoch == watcher.epoch
    return gone if is_own or corrects else None


def resolve(state: State, number: int, sent: OutgoingMessage) -> tuple[Conflict, Watcher]:
    """Return the outcome of a rejected message: `OrderedPublisher._resolve_conflict`."""
    watcher, subject = state.watchers[number], sent.message.subject
    last, theirs = state.stream.stored[subject], state.stream.valid(subject)
    if last is not None and last.message == sent.message:
        return Conflict.PUBLISHED, mark_published(watcher, subject)
    if sent.message.stream == state.stream.number and (
        theirs is None or sent.message.order > theirs.message.order
    ):
        resent = replace(sent, expected=state.stream.sequence_of(subject))
        return Conflict.RESENT, replace(watcher, in_flight=resent)
    dropped = mark_published(watcher, subject)
    if subject in NODES:
        return Conflict.DROPPED, dropped
    return Conflict.DROPPED, replace(dropped, is_rejected=True)


def mark_published(watcher: Watcher, subject: int) -> Watcher:
    """Return the watcher without this message in flight and in the round."""
    return replace(watcher, in_flight=None, unpublished=watcher.unpublished - {subject})
