"""What a watcher decides: the rules of `publish_decision`, `ordered_publisher` and `leader_epoch`."""

from enum import Enum

from msgspec.structs import replace

from tests.model.handover_state import (
    LEADING,
    NODES,
    SNAPSHOT,
    Message,
    OutgoingMessage,
    State,
    Stored,
    Stream,
    Watcher,
)


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
