"""Messages of a COSI watch -> whether something that we read has changed."""

from typing import Final

from services.metadata.talos_api.machine_reading import LONGEST_TEXT, Unreadable
from services.metadata.talos_api.proto.generated.cosi.resource import (
    Event,
    EventType,
    Resource,
    WatchResponse,
)
from services.metadata.talos_api.proto.strict import Malformed, parse

MOST_EVENTS: Final = 1024
_STATE: Final = frozenset({EventType.CREATED, EventType.UPDATED, EventType.DESTROYED})


class WatchErrored(Exception):
    """The server says that this watch will carry nothing more (a slow reader, for one)."""


def count_changes(answer: bytes) -> int:
    """How many events of one WatchResponse tell of another spec; the first message of a watch is empty.

    An event that changed only metadata (a version, a finalizer) is none. Raises WatchErrored, Unreadable.
    """
    try:
        events = parse(WatchResponse, answer).event
    except Malformed as error:
        raise Unreadable(str(error)) from error
    if len(events) > MOST_EVENTS:
        raise Unreadable(f"more than {MOST_EVENTS} events in one message")
    return sum(_is_change(event) for event in events)


def _is_change(event: Event) -> bool:
    # A packed list of numbers is taken for an enum, too.
    if not isinstance(event.event_type, int):
        raise Unreadable("an event type that is not a number")
    if event.event_type == EventType.ERRORED:
        raise WatchErrored(str(event.error or "no reason given")[:LONGEST_TEXT])
    if event.event_type not in _STATE:
        return False
    return event.event_type != EventType.UPDATED or _spec_of(event.resource) != _spec_of(event.old)


def _spec_of(resource: object) -> object:
    return resource.spec and resource.spec.proto_spec if isinstance(resource, Resource) else None
