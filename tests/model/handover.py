"""The model of the hand-over between two watchers: its steps, and what must hold. See docs/design.md."""

from collections.abc import Iterator

from msgspec.structs import replace

from tests.model.handover_key import build_key
from tests.model.handover_parts import (
    Conflict,
    add_all,
    apply,
    catch_up,
    decide_node,
    is_accepted,
    list_faults,
    mark_published,
    must_repeat_snapshot,
    needs_round,
    publish,
    replay,
    resolve,
    start_round,
)
from tests.model.handover_state import (
    LEADING,
    NO_WATCHER,
    NODES,
    SNAPSHOT,
    SUBJECTS,
    Follower,
    Message,
    OutgoingMessage,
    Rules,
    State,
    Stored,
    Watcher,
)
from tests.model.search import Model, Step


def build_model(
    rules: Rules, *, faults: int, renewals: int = 0, is_follower_slow: bool = False
) -> Model[State]:
    """Return the model with these rules, and at most these faults."""
    return Model(
        start=State(rules=rules, faults=faults, renewals=renewals, is_follower_slow=is_follower_slow),
        list_steps=list_steps,
        build_key=build_key,
        find_violation=find_violation,
        find_unfinished=find_unfinished,
    )


def list_steps(state: State) -> Iterator[Step[State]]:
    """Yield every step that is possible in a state."""
    for number in (0, 1):
        yield from _list_watcher_steps(state, number)
    for late in dict.fromkeys(state.late):
        yield from _list_late_steps(state, late)
    yield from _list_follower_steps(state)
    yield from list_faults(state)


def find_violation(state: State) -> str:
    """Return what the follower shows and must not, after its gate has opened; "" if nothing."""
    follower, cluster = state.follower, state.cluster
    snapshot = follower.table[SNAPSHOT]
    if snapshot is None:
        return ""
    for node in NODES:
        shown = follower.table[node]
        if shown is None:
            if _must_be_shown(state, node, snapshot):
                return f"the follower lacks {SUBJECTS[node]}, which is in the list of its snapshot"
            continue
        if shown.message.exists:
            then = cluster.node_as_of(node, snapshot.message.version)
            if not then:
                return f"the follower shows {SUBJECTS[node]}, deleted before the list of its snapshot"
            if shown.message.version < then:
                return f"the follower shows {SUBJECTS[node]} older than in the list of its snapshot"
        elif cluster.node_as_of(node, cluster.version):
            return f"the follower takes {SUBJECTS[node]} for deleted, which exists"
    return ""


def _must_be_shown(state: State, node: int, snapshot: Stored) -> bool:
    """Return whether the follower needs a Node; not while its last message is one that followers ignore."""
    cluster, stored = state.cluster, state.stream.stored[node]
    if state.follower.stream != state.stream.number or state.stream.valid(node) is None:
        return False
    is_in_list = cluster.node_as_of(node, snapshot.message.version) > 0
    still_exists = cluster.node_as_of(node, cluster.version) > 0
    return is_in_list and still_exists and stored is not None and not stored.is_fenced


def find_unfinished(state: State) -> str:
    """Return how the follower differs from the cluster when no part has anything left to do."""
    follower, cluster = state.follower, state.cluster
    if not follower.is_open:
        return "all is quiet, and the follower has no snapshot"
    for node in NODES:
        shown = follower.table[node]
        version = shown.message.version if shown is not None and shown.message.exists else 0
        if version != cluster.node_as_of(node, cluster.version):
            return f"all is quiet, and the follower has another state of {SUBJECTS[node]} than Kubernetes"
    return ""


def _list_watcher_steps(state: State, number: int) -> Iterator[Step[State]]:
    watcher, name, is_cut = state.watchers[number], f"watcher {number + 1}", state.cut == number
    if not watcher.leads:
        if state.holder == NO_WATCHER and not is_cut:
            leads = _put(state, number, Watcher(leads=True))
            after = replace(leads, holder=number, transitions=state.transitions + 1)
            yield Step(f"{name} acquires the Lease", after, True)
        return
    is_holder = state.holder == number
    if is_holder:
        yield from _list_lease_holder_steps(state, number)
    else:  # resumed, it may still send what it has decided before
        yield Step(f"{name} learns that it has lost the Lease, and ends", _end_term(state, number), True)
    if is_cut:
        return
    must_begin = needs_round(watcher, state.stream)
    if watcher.in_flight is not None:
        yield from _list_deliveries(state, number, watcher.in_flight)
    elif not must_begin:
        yield from _list_sends(state, number)
    if is_holder and must_begin:
        started = start_round(state, number)
        after = replace(_put(state, number, started), late=_add_late(state, watcher))
        yield Step(f"{name} begins a round with epoch {started.epoch}", after, True)


def _list_lease_holder_steps(state: State, number: int) -> Iterator[Step[State]]:
    watcher, name = state.watchers[number], f"watcher {number + 1}"
    is_standby_there = not state.watchers[1 - number].leads
    if state.cut == number and is_standby_there and state.rules.cut_off_leader_steps_down:
        after = replace(_end_term(state, number), holder=NO_WATCHER)
        yield Step(f"{name} reads that a standby reaches NATS, and releases the Lease", after, True)
    if watcher.as_of < state.cluster.version:
        synced = replace(watcher, as_of=state.cluster.version)
        verb = "receives the changes of" if watcher.as_of else "lists"
        yield Step(f"{name} {verb} the Nodes", _put(state, number, synced), True)


def _list_sends(state: State, number: int) -> Iterator[Step[State]]:
    watcher, left = state.watchers[number], state.watchers[number].unpublished
    if watcher.as_of == 0:
        return
    if LEADING in left:
        yield _send(state, number, Message(subject=LEADING, stream=watcher.stream, epoch=watcher.epoch))
        return
    if not watcher.listed_at:
        text = f"watcher {number + 1} puts every Node of its store and of the stream into the round"
        yield Step(text, _put(state, number, add_all(watcher, state)), True)
        return
    for node in NODES:
        message = decide_node(state, number, node)
        if message is not None:
            yield _send(state, number, message)
        elif node in left:
            text = f"watcher {number + 1} has nothing to publish about {SUBJECTS[node]}"
            yield Step(text, _put(state, number, mark_published(watcher, node)), True)
    if must_repeat_snapshot(state, number):
        text = f"watcher {number + 1} finds its snapshot replaced"
        yield Step(text, _put(state, number, replace(watcher, unpublished=frozenset({SNAPSHOT}))), True)
    if left and (left == {SNAPSHOT} or not state.rules.snapshot_waits_for_all):
        snapshot = Message(
            subject=SNAPSHOT, stream=watcher.stream, epoch=watcher.epoch, version=watcher.listed_at
        )
        if SNAPSHOT in left:
            yield _send(state, number, snapshot)


def _send(state: State, number: int, message: Message) -> Step[State]:
    sent = OutgoingMessage(message=message, expected=state.stream.sequence_of(message.subject))
    watcher = replace(state.watchers[number], in_flight=sent)
    return Step(f"watcher {number + 1} sends {_describe(message)}", _put(state, number, watcher), True)


def _list_deliveries(state: State, number: int, sent: OutgoingMessage) -> Iterator[Step[State]]:
    what = f"{_describe(sent.message)} of watcher {number + 1}"
    if is_accepted(state.stream, sent, state.rules):
        after = publish(state, sent.message)
        watcher = mark_published(state.watchers[number], sent.message.subject)
        yield Step(f"the stream takes {what}", _put(after, number, watcher), True)
        if state.faults:
            text = f"the stream takes {what}, and its acknowledgement is lost"
            yield Step(text, replace(after, faults=state.faults - 1), False)
        return
    outcome, watcher = resolve(state, number, sent)
    reason = {Conflict.RESENT: "rejects", Conflict.DROPPED: "rejects", Conflict.PUBLISHED: "has"}[outcome]
    yield Step(f"the stream {reason} {what}: {outcome.value}", _put(state, number, watcher), True)


def _list_late_steps(state: State, late: OutgoingMessage) -> Iterator[Step[State]]:
    position = state.late.index(late)
    left = replace(state, late=(*state.late[:position], *state.late[position + 1 :]))
    what = f"{_describe(late.message)} of a watcher that leads no more"
    if is_accepted(state.stream, late, state.rules):
        yield Step(f"the stream takes {what}", publish(left, late.message), False)


def _list_follower_steps(state: State) -> Iterator[Step[State]]:
    follower, stream = state.follower, state.stream
    if follower.stream != stream.number:
        found = replay(Follower(stream=stream.number), stream, state.rules)
        yield Step("the follower finds the new stream", replace(state, follower=found), True)
        return
    for stored in stream.list_after(follower.sequence)[:1]:
        applied = apply(follower, stored, state.rules)
        if not stream.list_after(stored.sequence):
            applied = catch_up(applied)
        text = f"the follower receives {_describe(stored.message)}"
        yield Step(text, replace(state, follower=applied), True)


def _end_term(state: State, number: int) -> State:
    ended = replace(state, late=_add_late(state, state.watchers[number]))
    return _put(ended, number, Watcher())


def _add_late(state: State, watcher: Watcher) -> tuple[OutgoingMessage, ...]:
    if watcher.in_flight is None:
        return state.late
    return tuple(sorted((*state.late, watcher.in_flight), key=repr))


def _put(state: State, number: int, watcher: Watcher) -> State:
    first, second = state.watchers
    return replace(state, watchers=(watcher, second) if number == 0 else (first, watcher))


def _describe(message: Message) -> str:
    name, epoch = SUBJECTS[message.subject], f"epoch {message.epoch}, stream {message.stream}"
    if message.subject not in NODES:
        return f"{name} ({epoch})"
    what = "version" if message.exists else "deleted as of"
    return f"{name} ({what} {message.version}, {epoch})"
