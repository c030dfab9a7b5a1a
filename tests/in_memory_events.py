"""The Events of an API server in memory."""

from datetime import datetime

from libs.common.kube.events import ObjectEvent, event_name


class InMemoryEvents:
    """Keeps each Event once by name, as an API server does."""

    def __init__(self) -> None:
        self.events: list[ObjectEvent] = []
        self._event_names: set[str] = set()

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool:
        """Store the Event; False if its name exists."""
        name = event_name(event, now)
        if name in self._event_names:
            return False
        self._event_names.add(name)
        self.events.append(event)
        return True

    def list_event_reasons(self, name: str) -> list[str]:
        """Reasons of the Events on the object of that name, in order."""
        return [event.reason for event in self.events if event.regarding.name == name]
