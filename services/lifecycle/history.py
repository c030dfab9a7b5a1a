"""The looks in which others answered in a Node's place: what held for how long, without a contrary word."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.common.events import NodeUnreachable
from services.lifecycle.evidence import PROOF, Judged, Word

# Looks further apart say nothing about the time between them; metadata looks once a minute.
MOST_BETWEEN: Final = timedelta(minutes=10)


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One look at all addresses of a Node, each answered by another machine."""

    began: datetime  # by metadata's clock: the first address
    ended: datetime  # the last one
    heard: float  # by our own monotonic clock: another's clock may be set
    attempt: int


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Looks at one Node that all said the same, one after the other."""

    uid: str
    first: Look
    last: Look
    looks: int = 1

    @property
    def span(self) -> timedelta:
        """For how long it held at least, by whichever clock says less."""
        heard = timedelta(seconds=self.last.heard - self.first.heard)
        return min(heard, self.last.began - self.first.ended)


def look_of(word: Word, heard: float) -> Look | None:
    """The look of which that word tells, None if it proves nothing."""
    if not isinstance(word, NodeUnreachable) or not word.answered_by or word.fault.kind != PROOF:
        return None
    times = [machine.looked_at for machine in word.answered_by]
    return Look(began=min(times), ended=max(times), heard=heard, attempt=word.attempt)


def with_look(history: History | None, uid: str, look: Look) -> History:
    """The history with this look at its end; one that was told before is no news.

    A count of attempts that did not grow tells of a success in between that we did not hear, a look that did
    not begin after the last one of a clock that was set, or of two that look.
    """
    anew = History(uid=uid, first=look, last=look)
    if history is None or history.uid != uid:
        return anew
    last = history.last
    apart = max(timedelta(seconds=look.heard - last.heard), look.began - last.ended)
    if apart > MOST_BETWEEN:
        return anew
    if (look.began, look.ended, look.attempt) == (last.began, last.ended, last.attempt):
        return history
    if look.began <= last.ended or look.attempt <= last.attempt:
        return anew
    return History(uid=uid, first=history.first, last=look, looks=history.looks + 1)


def judge_history(history: History | None, *, looks: int, span: timedelta) -> Judged:
    """Whether it held for long enough."""
    if history is None:
        return Judged(lacks=(f"{looks} looks that show it",))
    since = f"since {history.first.began:%Y-%m-%dT%H:%M:%SZ}"
    minutes = f"{span.total_seconds() / 60:g} min"
    if history.looks < looks:
        return Judged(lacks=(f"{history.looks} of {looks} looks show it {since}",))
    if history.span < span:
        return Judged(lacks=(f"it has been so {since}, which is not for {minutes}",))
    return Judged(has=(f"it has been so in {looks} looks over {minutes} and more, {since}",))
