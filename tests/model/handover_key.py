"""Which states of the model of the hand-over are interchangeable: those with equal keys.

They have the same violations, and the same steps to states with equal keys. So the search follows one of
them. A key names no watcher, and leaves out what no part reads again.
"""

from functools import lru_cache
from typing import Final

from tests.model.handover_parts import needs_round
from tests.model.handover_state import (
    LEADING,
    NODES,
    SNAPSHOT,
    Follower,
    OutgoingMessage,
    State,
    Stored,
    Stream,
    Watcher,
)

Part = tuple[bytes, bytes]  # a part of a key: values, and epochs
_NONE: Final = 255  # higher than every other value
_NEVER, _NOW, _LATER = 0, 1, 2  # when the stream takes a message with that expected sequence
_SHIFTS: Final = [  # by the lowest epoch: what a key has for each epoch, of which 0 means none
    bytes(max(0, epoch - lowest) + (epoch > 0) for epoch in range(_NONE)) + b"\0" for lowest in range(_NONE)
]
_CACHED: Final = 1 << 14  # parts; a step changes few of them


def build_key(state: State) -> bytes:
    """Return the key of a state. It does not contain the rules: compare states of one model only.

    Sequences matter by their number only while a wipe can follow, and epochs only by their distance.
    """
    stream, cluster, rules = state.stream, state.cluster, state.rules
    by_number = state.faults > 0 or not rules.publishes_with_expected_sequence
    first, second = (
        _describe_watcher(watcher, stream, state.holder == number, state.cut == number, by_number)
        for number, watcher in enumerate(state.watchers)
    )
    parts = [
        (
            bytes((state.faults, state.renewals, cluster.changed_at, cluster.deleted_at)),
            bytes((_find_transitions(state), stream.greatest_epoch)),
        ),
        _describe_stream(stream, by_number),
        _describe_follower(state.follower, stream, by_number),
        *((first, second) if first < second else (second, first)),
    ]
    if state.late:
        late = [_describe_late(sent, stream, by_number) for sent in state.late]
        parts += sorted(part for part in late if part is not None)
    epochs = b"".join([part[1] for part in parts])
    lowest = min(epochs.translate(None, b"\0")) if rules.new_leader_has_new_epoch else 1
    return b"".join([part[0] for part in parts]) + epochs.translate(_SHIFTS[lowest])


def _find_transitions(state: State) -> int:
    """Return 0 if no later epoch depends on them: after the last fault, the Lease changes its holder once."""
    return 0 if state.faults == 0 and state.transitions < state.stream.greatest_epoch else state.transitions


@lru_cache(_CACHED)
def _describe_stream(stream: Stream, by_number: bool) -> Part:
    sequences = [stored.sequence if stored is not None else 0 for stored in stream.stored]
    order = sorted(sequences)
    values = sequences if by_number else [order.index(sequence) for sequence in sequences]
    epochs: list[int] = []
    for stored in stream.stored:
        if stored is None:
            values.append(_NONE)
        else:
            _add_stored(stored, stream, values, epochs)
    return bytes(values), bytes(epochs)


def _add_stored(stored: Stored, stream: Stream, values: list[int], epochs: list[int]) -> None:
    message, replaced = stored.message, stored.replaced
    is_node = message.subject in NODES
    values += (stream.number - message.stream, message.version, message.exists, is_node and stored.is_fenced)
    epochs.append(message.epoch)
    if replaced is None or message.subject == LEADING:
        values.append(_NONE)
    elif message.subject == SNAPSHOT:
        values.append(1)
    else:
        values += (replaced.message.version, replaced.message.exists, replaced.is_fenced)
        epochs.append(replaced.message.epoch)


@lru_cache(_CACHED)
def _describe_follower(follower: Follower, stream: Stream, by_number: bool) -> Part:
    """Describe what the follower shows, and what it compares later messages with."""
    is_current = follower.stream == stream.number
    values: list[int] = [is_current]
    epochs = [follower.epoch if is_current else 0]
    for subject in (*NODES, SNAPSHOT):
        shown = follower.table[subject]
        if shown is None:
            values.append(_NONE)
            continue
        values += (shown.message.version, shown.message.exists)
        if is_current and by_number and subject in NODES:  # a reconnection compares it with the stream
            values.append(shown.sequence < stream.sequence_of(subject))
            epochs.append(shown.message.epoch)
    if is_current:
        pending = len(stream.list_after(follower.sequence))
        values += (pending, follower.snapshot.message.version if follower.snapshot is not None else _NONE)
    return bytes(values), bytes(epochs)


@lru_cache(_CACHED)
def _describe_watcher(
    watcher: Watcher, stream: Stream, is_holder: bool, is_cut: bool, by_number: bool
) -> Part:
    """Describe what the watcher can still do, which is little without the Lease or before a round."""
    publishes = not (needs_round(watcher, stream) or watcher.as_of == 0 or (is_cut and not is_holder))
    values: list[int] = [watcher.leads, is_holder, is_cut, publishes]
    epochs: list[int] = []
    if watcher.in_flight is None:
        values.append(_NONE)
    else:
        _add_outgoing(watcher.in_flight, stream, by_number, values, epochs)
    if is_holder or publishes:
        values += (watcher.as_of, watcher.is_rejected)
        epochs.append(watcher.epoch)
    if publishes:
        values += (watcher.listed_at, sum(1 << subject for subject in watcher.unpublished))
    return bytes(values), bytes(epochs)


@lru_cache(_CACHED)
def _describe_late(sent: OutgoingMessage, stream: Stream, by_number: bool) -> Part | None:
    """Describe a late message, None if the stream can never take it."""
    values: list[int] = []
    epochs: list[int] = []
    is_possible = _add_outgoing(sent, stream, by_number, values, epochs) != _NEVER
    return (bytes(values), bytes(epochs)) if is_possible else None


def _add_outgoing(
    sent: OutgoingMessage, stream: Stream, by_number: bool, values: list[int], epochs: list[int]
) -> int:
    """Add the message, and return when the stream takes it."""
    message = sent.message
    distance, taken = sent.expected, _LATER
    if not by_number:
        distance = max(0, sent.expected - stream.last_sequence)
        is_next = sent.expected == stream.sequence_of(message.subject)
        taken = _NOW if is_next else _LATER if distance else _NEVER
    values += (message.subject, stream.number - message.stream, message.version, message.exists)
    values += (taken, distance)
    epochs.append(message.epoch)
    return taken
