"""How long ago the stream took each enriched request, by the bus's clock and our own monotonic one.

No wall clock of ours takes part. Where the bus's clock went back, an age is unknown, never small.
"""

from typing import Final, NamedTuple

from libs.common.bus import Message
from libs.common.events import CsrEnriched

_SAME_SECONDS: Final = 1.0  # by so little the clocks of several bus servers may differ


class _Heard(NamedTuple):
    sequence: int
    stamp: float  # when the stream took it, by the bus's clock
    at: float  # when we received it, by ours
    is_live: bool  # else it is from before we followed


class EnrichmentAges:
    """Kept from every message of the flow. `at` is monotonic time in seconds throughout.

    The bus's present time is the stamp of its newest message and the seconds since that came. What came
    live is at least as old as the time that we have known it.
    """

    def __init__(self) -> None:
        self._requests: dict[str, _Heard] = {}  # by subject
        self._newest: _Heard | None = None
        self._went_back_at = 0  # sequence: what is not behind it was stamped before the clock went back

    def heard(self, message: Message, *, at: float, is_live: bool) -> None:
        """The stream holds this message."""
        heard = _Heard(message.sequence, message.published_at.timestamp(), at, is_live)
        newest = self._newest
        if newest is None or heard.sequence > newest.sequence:
            if newest is not None and heard.stamp < newest.stamp - _SAME_SECONDS:
                self._went_back_at = newest.sequence
            self._newest = heard
        if not isinstance(message.event, CsrEnriched):
            self._requests.pop(message.subject, None)
            return
        known = self._requests.get(message.subject)
        if known is None or (known.sequence, known.stamp) != (heard.sequence, heard.stamp):
            self._requests[message.subject] = heard

    def dropped(self, subject: str) -> None:
        """The stream holds that subject no more."""
        self._requests.pop(subject, None)

    def clear(self) -> None:
        """Another stream: everything known is void."""
        self._requests.clear()
        self._newest = None
        self._went_back_at = 0

    def seconds(self, message: Message, at: float) -> float | None:
        """The age of an enriched request; None if nobody can know it."""
        heard, newest = self._requests.get(message.subject), self._newest
        if heard is None or newest is None or heard.sequence != message.sequence:
            return None
        known_for = at - heard.at
        by_stamps = newest.stamp + (at - newest.at) - heard.stamp
        if heard.sequence > self._went_back_at and by_stamps >= -_SAME_SECONDS:
            return max(known_for, by_stamps)
        return known_for if heard.is_live else None
