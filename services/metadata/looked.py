"""How looks and watches change what is known of a Node."""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.events import EnrichedNode, NodeEnriched, NodeUnreachable
from libs.common.machine import AnotherMachine, MachineFacts, MachineFault, metadata_incomplete
from libs.common.node import Node
from services.metadata import announced, schedule
from services.metadata.inventory import (
    NOTHING_ASKED,
    Asked,
    after_look,
    doubted,
    fault_to_wait_for,
    parts_to_ask,
    with_inventory,
)
from services.metadata.known import NEVER, Known
from services.metadata.resolve import recognize
from services.metadata.schedule import Pace
from services.metadata.talos_api.machine_events import Contents
from services.metadata.talos_api.resources import Part

_MOST_DISCARDED: Final = 3
_ADDRESSES_CHANGE: Final = MachineFault(
    kind="bad_node_ip",
    step="provided-node-ip",
    message="the Node or its addresses change before the machine answers",
)


def looked_well(
    known: Known,
    facts: MachineFacts,
    heard: EnrichedNode | None,
    *,
    others: Iterable[Node] | None,
    began: float,
    now: float,
    pace: Pace,
    jitter: float,
    asked: Asked = NOTHING_ASKED,
) -> Known:
    """A machine answered. `heard` is what the stream holds, whoever said it: it may need correction."""
    node = known.node
    if node is None:
        return known
    recognized = recognize(node, facts, others)
    if isinstance(recognized, MachineFault):
        return looked_badly(known, recognized, began=began, now=now, jitter=jitter)
    fault = _lost_metadata(known.last_known, facts) or fault_to_wait_for(known, asked)
    if fault is not None:
        return looked_badly(known, fault, began=began, now=now, jitter=jitter)
    facts = with_inventory(known, facts, asked)
    blocked = not node.initialized and announced.keeps_waiting(facts, known.addresses)
    incomplete = known.incomplete_looks + 1 if blocked or metadata_incomplete(facts.platform) else 0
    wait = (
        schedule.after_incomplete(incomplete, jitter)
        if incomplete
        else schedule.after_success(pace, watched=known.watched, jitter=jitter)
    )
    known = msgspec.structs.replace(
        known,
        facts=facts,
        recognized=recognized,
        fault=None,
        answered_by=(),
        failures={},
        incomplete_looks=incomplete,
        last_known=facts,
        looked=began,
        due=min(now + wait, _due_after_change(known, pace) if _stirred_at(known) >= began else NEVER),
        look_first=False,
        said=heard if heard is not None else known.said,
    )
    return after_look(known, asked, began=began, now=now, pace=pace, jitter=jitter)


def looked_badly(
    known: Known,
    fault: MachineFault,
    *,
    began: float,
    now: float,
    jitter: float,
    answered_by: tuple[AnotherMachine, ...] = (),
) -> Known:
    """No facts, and why. The last known ones stay known as such. `answered_by`: who answers in its place."""
    failures = schedule.failed(known.failures, fault)
    return msgspec.structs.replace(
        known,
        facts=None,
        recognized=None,
        fault=fault,
        answered_by=answered_by,
        failures=failures,
        incomplete_looks=0,
        looked=began,
        due=now + schedule.after_failure(failures, fault, jitter),
        look_first=False,
    )


def discarded(known: Known, count: int) -> Known:
    """`count` looks in a row were discarded: the Node's uid or addresses changed meanwhile.

    If nothing was published on the Node, these changes become its fault. The next look stays due.
    """
    said = known.said
    is_reported = isinstance(said, NodeEnriched | NodeUnreachable) and said.node.uid == known.uid
    if count < _MOST_DISCARDED or is_reported or not known.addresses:
        return known
    return msgspec.structs.replace(
        known, fault=_ADDRESSES_CHANGE, failures=schedule.failed(known.failures, _ADDRESSES_CHANGE)
    )


def hurried(known: Known, *, now: float, within: float) -> Known:
    """Look within that many seconds, if not sooner (a cause of many failures has gone away)."""
    return msgspec.structs.replace(known, due=min(known.due, now + within)) if known.addresses else known


def needed_anew(known: Known, needed: frozenset[Part], *, now: float, within: float, pace: Pace) -> Known:
    """The rules need another inventory: look within that many seconds, if they need more than is known."""
    if known.facts is None or not parts_to_ask(known, needed, now=now, pace=pace):
        return known
    return hurried(known, now=now, within=within)


def contradicted(known: Known, *, now: float, pace: Pace) -> Known:
    """The stream says that there are no facts. Have we some, a look is due: if it is good, facts win."""
    if known.facts is None:
        return known
    return msgspec.structs.replace(known, due=min(known.due, max(now, known.looked + pace.apart)))


def watch_opened(known: Known, contents: Contents, *, now: float, pace: Pace) -> Known:
    """A watch is live. If it began with what the facts say, they hold; else a look is due.

    The look that was due anyway stays due: it reads what is not watched.
    """
    known = msgspec.structs.replace(known, watched=True, opened_at=now)
    if known.facts is not None and contents.agree_with(known.facts):
        return known
    return changed(known, now=now, pace=pace)


def unwatched(known: Known) -> Known:
    """The watch there was is none on the machine that bears the Node now."""
    return msgspec.structs.replace(known, watched=False)


def changed(known: Known, *, now: float, pace: Pace) -> Known:
    """A live watch is open and something happened: a look is due, once the flock of events has passed."""
    known = msgspec.structs.replace(known, watched=True, changed_at=now)
    return msgspec.structs.replace(known, due=min(known.due, _due_after_change(known, pace)))


def watch_ended(known: Known, *, now: float, within: float) -> Known:
    """Nobody tells of changes any more: look within that many seconds."""
    known = doubted(hurried(known, now=now, within=within))
    return msgspec.structs.replace(known, watched=False)


def _lost_metadata(last_known: MachineFacts | None, facts: MachineFacts) -> MachineFault | None:
    """A rebooting machine says less than it did until its cloud answers: that must not take anything away."""
    reason = metadata_incomplete(facts.platform)
    if not reason or last_known is None or metadata_incomplete(last_known.platform):
        return None
    if facts.platform.platform not in {"", last_known.platform.platform}:
        return None
    return MachineFault(
        kind="not_found",
        step="PlatformMetadata",
        message=f"{reason}, though it had (is the machine at {facts.node_ip} starting?); what it said stands",
    )


def _due_after_change(known: Known, pace: Pace) -> float:
    return max(_stirred_at(known) + pace.debounce, known.looked + pace.apart)


def _stirred_at(known: Known) -> float:
    return max(known.changed_at, known.opened_at)
