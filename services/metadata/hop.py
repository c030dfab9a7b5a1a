"""The way of an observation through metadata: how old it is when work on it begins, and in which trace."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, Protocol

from libs.common import metrics, telemetry
from libs.common.bus import Message
from libs.common.wiring import METADATA

_MOST_LINKS: Final = 8  # of observations that nobody answered before the next one came

Headers = Mapping[str, str]


class Hop:
    """Of one object: measures each observation that was heard live once, whatever is done on its behalf."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._message: Message | None = None

    def heard(self, message: Message) -> None:
        """The newest observation."""
        self._message = message

    def begun(self) -> None:
        """Work on it begins; what is done later on is not on its behalf."""
        if self._message is None:
            return
        age = (self._now() - self._message.published_at).total_seconds()
        event = type(self._message.event).__name__
        metrics.HOP_LATENCY.labels(METADATA.service, event).observe(max(0.0, age), telemetry.exemplar())
        self._message = None


class Observed(Protocol):
    """The newest observation of an object."""

    @property
    def headers(self) -> Headers: ...

    @property
    def answered(self) -> bool: ...


class Journey:
    """In which trace an answer stands: in that of the observation; linked to it once that was answered."""

    def __init__(self) -> None:
        self._unanswered: tuple[Headers, ...] = ()

    def observe(self, before: Observed) -> None:
        """Another observation comes; the one before, if nobody answered it, is answered with this one."""
        if before.answered or not before.headers:
            self._unanswered = ()
        elif before.headers not in self._unanswered:
            self._unanswered = (*self._unanswered, before.headers)[-_MOST_LINKS:]

    def of(self, known: Observed) -> tuple[Headers | None, tuple[Headers, ...]]:
        """The parent, and whom to link to."""
        if known.answered:
            return None, (known.headers,) if known.headers else ()
        return known.headers, tuple(each for each in self._unanswered if each != known.headers)
