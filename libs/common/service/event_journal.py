"""The Events about Nodes that the services of a process have written, until their pulses carry them."""

from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Final

from libs.common.contract.events import MAX_PULSE_EVENTS, RecordedNodeEvent
from libs.common.observability.telemetry import context_field

if TYPE_CHECKING:  # a process without Kubernetes rights does not load the client
    from libs.common.kube.events import ObjectEvent

_MAX_WAITING: Final = 2000  # of one service; beyond it the oldest is dropped, and only Kubernetes has it
_MESSAGE_LENGTH: Final = 200  # characters, so that a pulse stays below the limit of an event


class EventJournal:
    """Keeps the Events of each service apart, in the order in which Kubernetes stored them."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[RecordedNodeEvent]] = {}

    def add(self, event: "ObjectEvent", at: datetime) -> None:
        """Add an Event of the service that runs in this context, if it is about a Node."""
        about = event.regarding
        if about.kind != "Node":
            return
        self._get(str(context_field("service"))).append(
            RecordedNodeEvent(
                node=about.name,
                uid=about.uid,
                component=event.component,
                type=event.type,
                reason=event.reason,
                message=event.message[:_MESSAGE_LENGTH],
                at=at,
            )
        )

    def take(self, service: str) -> tuple[RecordedNodeEvent, ...]:
        """Remove and return the oldest Events of a service, at most MAX_PULSE_EVENTS."""
        waiting = self._get(service)
        return tuple(waiting.popleft() for _ in range(min(MAX_PULSE_EVENTS, len(waiting))))

    def put_back(self, service: str, events: tuple[RecordedNodeEvent, ...]) -> None:
        """Keep Events for the next pulse, because the publish of this one failed."""
        self._get(service).extendleft(reversed(events))

    def _get(self, service: str) -> deque[RecordedNodeEvent]:
        return self._waiting.setdefault(service, deque(maxlen=_MAX_WAITING))
