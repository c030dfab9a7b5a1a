"""What the services said last of a Node, as the stream has it. Pure."""

from collections.abc import Iterable

import msgspec

from libs.common.bus import Message, Unreadable
from libs.common.events import DeadLetter, Decided, NodeEnriched, NodeUnreachable
from libs.common.subjects import DEAD, DECIDED, ENRICHED_NODE
from libs.common.wiring import SERVICES


class LastWords(msgspec.Struct, frozen=True, kw_only=True):
    """What was found; `problem` says why nothing could be."""

    decided: tuple[Decided, ...] = ()
    dead: tuple[DeadLetter, ...] = ()
    of_machine: NodeEnriched | NodeUnreachable | None = None  # metadata's
    unreadable: tuple[str, ...] = ()  # subjects
    problem: str = ""


def subjects_about(name: str) -> tuple[str, ...]:
    """Where the last words about a Node stand; the stream keeps them for an hour."""
    told = tuple(f"{prefix}.{each.service}.node.{name}" for prefix in (DECIDED, DEAD) for each in SERVICES)
    return (f"{ENRICHED_NODE}.{name}", *told)


def last_words(messages: Iterable[Message | None]) -> LastWords:
    """Of what stands under those subjects."""
    decided, dead, unreadable = [], [], []
    of_machine: NodeEnriched | NodeUnreachable | None = None
    for message in messages:
        match message.event if message else None:
            case Decided() as event:
                decided.append(event)
            case DeadLetter() as event:
                dead.append(event)
            case NodeEnriched() | NodeUnreachable() as event:
                of_machine = event
            case Unreadable() if message:
                unreadable.append(message.subject)
    return LastWords(
        decided=tuple(decided), dead=tuple(dead), of_machine=of_machine, unreadable=tuple(unreadable)
    )
