"""Sessions of users who are logged in. Pure; times are monotonic seconds."""

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Final

MAX_SESSIONS: Final = 32
LIFETIME_SECONDS: Final = 8 * 3600.0
CHECK_SECONDS: Final = 30.0  # between two checks of the rights of a session
RETRY_SECONDS: Final = 5.0  # after a check that the API server did not answer
UNCHECKED_SECONDS: Final = 120.0  # a session without an answer for that long shows nothing


@dataclass(eq=False, repr=False)  # a text of it would show the token
class Session:
    """A user who is logged in."""

    user: str
    token: str
    ends_at: float
    verified_at: float
    check_at: float

    def is_verified(self, now: float) -> bool:
        """Whether the API server has confirmed its rights lately."""
        return now - self.verified_at < UNCHECKED_SECONDS

    def record_check(self, now: float, *, is_answered: bool) -> None:
        """Plan the next check."""
        self.check_at = now + (CHECK_SECONDS if is_answered else RETRY_SECONDS)
        if is_answered:
            self.verified_at = now


class SessionTable:
    """Sessions by their secret id, of which it stores only a hash: the time of a search tells nothing."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, Session] = {}

    def add(self, session_id: str, user: str, token: str, now: float) -> None:
        """Add a session; at the limit it replaces the oldest one of the user with the most sessions."""
        if len(self._sessions) >= MAX_SESSIONS:
            [(most, _)] = Counter(each.user for each in self._sessions.values()).most_common(1)
            self.end(next(each for each in self._sessions.values() if each.user == most))
        self._sessions[_hash(session_id)] = Session(
            user, token, now + LIFETIME_SECONDS, now, now + CHECK_SECONDS
        )

    def find(self, session_id: str, now: float) -> Session | None:
        """Return the session with this id, unless it has ended."""
        found = self._sessions.get(_hash(session_id))
        return found if found is not None and now < found.ends_at else None

    def end(self, session: Session) -> None:
        """Forget a session."""
        self._sessions = {key: each for key, each in self._sessions.items() if each is not session}

    def list_due(self, now: float) -> tuple[Session, ...]:
        """Return the sessions to check; forget those whose lifetime is over."""
        self._sessions = {key: each for key, each in self._sessions.items() if now < each.ends_at}
        return tuple(each for each in self._sessions.values() if now >= each.check_at)


def _hash(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode(errors="surrogateescape")).digest()  # a cookie has any bytes
