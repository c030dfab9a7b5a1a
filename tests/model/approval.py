"""The model of an approval: csr judges a request, waits for a write slot and writes. See docs/design.md.

The request of web-1 names an address that its own machine has. The machine of db-1 may get it, too. csr may
approve it beside this claim if the flow showed it on web-1 first.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from tests.model.search import Model, Step

WEB: Final = 0  # its request is judged
DB: Final = 1  # its machine may claim the same address
NAMES: Final = ("web-1", "db-1")
ValueT = TypeVar("ValueT")


class Rules(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The rules of csr, each of which a mutant leaves out."""

    waits_for_every_report: bool = True  # before it decides by a new stream
    judges_again_in_write_slot: bool = True
    waits_for_snapshot: bool = True
    needs_known_order: bool = True  # to approve the Node that a stream showed first with the address


class Report(Enum):
    """What metadata has published about a machine, or csr has received."""

    NONE = "no report"
    ALONE = "a report without the address"
    CLAIM = "a report with the address"


class Request(Enum):
    """What csr has done about the request."""

    PENDING = "pending"
    QUEUED = "judged valid, waits for a write slot"
    APPROVED = "approved"


class StreamContents(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a stream contains, or csr has received of it."""

    nodes: tuple[bool, bool] = (False, False)
    reports: tuple[Report, Report] = (Report.NONE, Report.NONE)
    has_snapshot: bool = False
    is_web_first: bool = False  # by the report about db-1: this stream showed the address of web-1 before


class State(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything at one moment."""

    rules: Rules
    faults: int  # that may still happen
    db_exists: bool = True
    db_claims: bool = False  # whether its machine has the address
    is_claim_received: bool = False  # whether csr has ever received that this machine has it
    is_claim_shown: bool = False  # whether any stream has shown that
    is_claim_later: bool = False  # whether the first stream that showed it had shown web-1 with it before
    stream: StreamContents = StreamContents()
    csr: StreamContents = StreamContents()
    request: Request = Request.PENDING
    is_approved_wrongly: bool = False

    @property
    def exists(self) -> tuple[bool, bool]:
        return (True, self.db_exists)

    @property
    def attested(self) -> tuple[Report, Report]:
        """What the machines answer."""
        return (Report.CLAIM, Report.CLAIM if self.db_claims else Report.ALONE)


def build_model(rules: Rules, *, faults: int) -> Model[State]:
    """Return the model with these rules, and at most that many faults."""
    return Model(
        start=State(rules=rules, faults=faults),
        list_steps=list_steps,
        build_key=lambda state: state,
        find_violation=lambda state: _WRONG if state.is_approved_wrongly else "",
        find_unfinished=_find_unfinished,
    )


_WRONG: Final = "csr approves an address although it has received that another machine has it"
_NO_CLAIM: Final = {"is_claim_received": False, "is_claim_shown": False, "is_claim_later": False}


def list_steps(state: State) -> Iterator[Step[State]]:
    """Yield every step that is possible in a state."""
    yield from _list_publishers(state)
    yield from _list_receptions(state)
    yield from _list_decisions(state)
    yield from _list_changes(state)


def _find_unfinished(state: State) -> str:
    if state.request is not Request.APPROVED and (not state.db_claims or state.stream.is_web_first):
        return "all is quiet, and the valid request is not approved"
    return ""


def _list_publishers(state: State) -> Iterator[Step[State]]:
    """Yield what watcher and metadata publish: the state of Kubernetes and of the machines."""
    stream = state.stream
    for number, name in enumerate(NAMES):
        if stream.nodes[number] != state.exists[number]:
            nodes = _set(stream.nodes, number, state.exists[number])
            verb = "is there" if state.exists[number] else "is gone"
            after = replace(stream, nodes=nodes)
            yield Step(f"the watcher publishes that {name} {verb}", replace(state, stream=after), True)
        wanted = state.attested[number] if stream.nodes[number] else Report.NONE
        if stream.reports[number] is not wanted:
            after = replace(stream, reports=_set(stream.reports, number, wanted))
            shown = replace(state, stream=after)
            if number == DB:
                shown = _show_db(state, after)
            yield Step(f"metadata publishes {wanted.value} about {name}", shown, True)
    if not stream.has_snapshot and stream.nodes == state.exists:
        after = replace(stream, has_snapshot=True)
        yield Step("the watcher publishes SnapshotComplete", replace(state, stream=after), True)


def _show_db(state: State, after: StreamContents) -> State:
    """Return the state after a report about db-1, which contains the order of the two claims."""
    is_claim = after.reports[DB] is Report.CLAIM
    is_web_shown = is_claim and after.reports[WEB] is Report.CLAIM
    is_known = state.stream.reports[DB] is Report.ALONE
    is_first = is_web_shown and (is_known or not state.rules.needs_known_order)
    shown = replace(state, stream=replace(after, is_web_first=is_first))
    if not is_claim or state.is_claim_shown:
        return shown
    return replace(shown, is_claim_shown=True, is_claim_later=is_web_shown and is_known)


def _list_receptions(state: State) -> Iterator[Step[State]]:
    """Yield what csr receives. Subjects arrive in any order, but a snapshot after the Nodes before it."""
    stream, csr = state.stream, state.csr
    for number, name in enumerate(NAMES):
        if csr.nodes[number] != stream.nodes[number]:
            received = replace(csr, nodes=_set(csr.nodes, number, stream.nodes[number]))
            yield Step(f"csr receives the state of {name}", replace(state, csr=received), True)
        report = stream.reports[number]
        if csr.reports[number] is not report:
            received = replace(csr, reports=_set(csr.reports, number, report))
            if number == DB:
                received = replace(received, is_web_first=stream.is_web_first)
            knows = state.is_claim_received or (number == DB and report is Report.CLAIM)
            after = replace(state, csr=received, is_claim_received=knows and state.db_claims)
            yield Step(f"csr receives {report.value} about {name}", after, True)
    if stream.has_snapshot and not csr.has_snapshot and csr.nodes == stream.nodes:
        received = replace(csr, has_snapshot=True)
        yield Step("csr receives SnapshotComplete", replace(state, csr=received), True)


def _list_decisions(state: State) -> Iterator[Step[State]]:
    if state.request is Request.PENDING and is_valid(state):
        queued = replace(state, request=Request.QUEUED)
        yield Step("csr judges the request valid, which waits for a write slot", queued, True)
    if state.request is not Request.QUEUED:
        return
    if state.rules.judges_again_in_write_slot and not is_valid(state):
        waiting = replace(state, request=Request.PENDING)
        yield Step("csr has a write slot, judges again and waits", waiting, True)
        return
    is_wrong = state.is_claim_received and state.db_claims and not state.is_claim_later
    approved = replace(state, request=Request.APPROVED, is_approved_wrongly=is_wrong)
    yield Step("csr has a write slot and approves", approved, True)


def is_valid(state: State) -> bool:
    """Return whether csr may approve by what it has received."""
    csr, rules = state.csr, state.rules
    if rules.waits_for_snapshot and not csr.has_snapshot:
        return False
    if not csr.nodes[WEB] or csr.reports[WEB] is not Report.CLAIM:
        return False
    is_unreported = csr.nodes[DB] and csr.reports[DB] is Report.NONE
    if rules.waits_for_every_report and is_unreported:
        return False
    return csr.reports[DB] is not Report.CLAIM or csr.is_web_first


def _list_changes(state: State) -> Iterator[Step[State]]:
    """Yield changes of the cluster, and faults."""
    if not state.db_claims and state.db_exists:
        yield Step("the machine of db-1 gets the address", replace(state, db_claims=True), False)
    if state.db_exists:
        gone = replace(state, db_exists=False, db_claims=False, **_NO_CLAIM)
        yield Step("db-1 is deleted", gone, False)
    if not state.faults:
        return
    state = replace(state, faults=state.faults - 1)
    wiped = replace(state, stream=StreamContents(), csr=StreamContents())
    yield Step("the stream is wiped and created again, and csr follows it", wiped, False)
    request = Request.PENDING if state.request is Request.QUEUED else state.request
    restarted = replace(state, csr=StreamContents(), request=request)
    yield Step("csr restarts and has received nothing", restarted, False)


def _set(pair: tuple[ValueT, ValueT], number: int, value: ValueT) -> tuple[ValueT, ValueT]:
    return (value, pair[1]) if number == WEB else (pair[0], value)
