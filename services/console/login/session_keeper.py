"""Logs users in by their token, and checks again and again what the API server says about them."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from libs.common.kube.access_reviews import review_access, review_token
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import KubeError
from services.console.login.attempt_limiter import AttemptLimiter, AttemptRate
from services.console.login.sessions import Session, SessionTable

log = logging.getLogger(__name__)

_CONNECTIONS: Final = 2  # at most as many reviews at once
_REVIEW_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 1.0  # between two searches for sessions that are due
_PER_SOURCE: Final = AttemptRate(10, 2.0)
_OVERALL: Final = AttemptRate(50, 0.2)


class LoginRefusal(msgspec.Struct, frozen=True):
    """Why there is no valid session, as HTTP status and in words for the user."""

    status: int
    reason: str


class SessionKeeper:
    """The sessions of one server, in memory."""

    def __init__(
        self, kube: KubeApi, kinds: Sequence[tuple[str, str]], monotonic: Callable[[], float]
    ) -> None:
        """A user needs the right to list these kinds: pairs of group and plural.

        The requests have connections of their own, so that they delay no other part of the process.
        """
        self._kinds = kinds
        self._kube = kube.with_own_connections(connections=_CONNECTIONS)
        self._monotonic = monotonic
        self._sessions = SessionTable()
        self._limiter = AttemptLimiter(per_source=_PER_SOURCE, overall=_OVERALL)

    async def log_in(self, token: str, source: str) -> str | LoginRefusal:
        """Return the id of a new session for the holder of a token, who connects from this address."""
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            return LoginRefusal(400, "This is no bearer token.")
        if not self._limiter.admit(source, self._monotonic()):
            return LoginRefusal(429, "There were too many attempts. Try again in a minute.")
        try:
            user, denial = await self._review(token)
        except KubeError as error:
            log.warning("cannot check the token of a login", extra={"error": str(error)})
            return LoginRefusal(503, "The API server cannot check the token now. The log has the reason.")
        log.info("login", extra={"user": user, "denial": denial, "source": source})
        if denial:
            return LoginRefusal(403, denial)
        session_id = secrets.token_urlsafe(32)
        self._sessions.add(session_id, user, token, self._monotonic())
        return session_id

    def log_out(self, session_id: str) -> None:
        """End the session with this id, if there is one."""
        if (session := self._sessions.find(session_id, self._monotonic())) is not None:
            self._sessions.end(session)

    def check_session(self, session_id: str) -> str | LoginRefusal:
        """Return the user of the session with this id."""
        now = self._monotonic()
        session = self._sessions.find(session_id, now)
        if session is None:
            return LoginRefusal(401, "Log in first.")
        if not session.is_verified(now):
            return LoginRefusal(503, "The API server does not confirm the rights of this session.")
        return session.user

    async def run(self) -> None:
        """Check all sessions at intervals until cancelled; end those whose token or rights are gone."""
        try:
            while True:
                due = self._sessions.list_due(self._monotonic())
                await asyncio.gather(*map(self._check, due))
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await self._kube.close()

    async def _check(self, session: Session) -> None:
        try:
            _, denial = await self._review(session.token)
        except KubeError as error:
            log.warning("cannot check a session", extra={"user": session.user, "error": str(error)})
            session.record_check(self._monotonic(), is_answered=False)
            return
        session.record_check(self._monotonic(), is_answered=True)
        if denial:
            log.info("session ended", extra={"user": session.user, "denial": denial})
            self._sessions.end(session)

    async def _review(self, token: str) -> tuple[str, str]:
        """Return the user of the token, and why access is denied, "" if it is not. Raises KubeError."""
        user = await review_token(self._kube, token, deadline_seconds=_REVIEW_SECONDS)
        if user is None:
            return "", "The API server does not accept this token: it is wrong, or it has expired."
        for group, resource in self._kinds:
            attributes = {"verb": "list", "group": group, "resource": resource}
            if not await review_access(self._kube, user, attributes, deadline_seconds=_REVIEW_SECONDS):
                return user.username, f"{user.username} may not list {resource}."
        return user.username, ""
