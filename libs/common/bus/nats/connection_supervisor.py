"""Keeps a connection to NATS: connects with backoff, pings it, and replaces it when it falls silent."""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

import msgspec

from libs.common.bus.delivery import backoff_seconds
from libs.common.bus.nats.connection import Connection
from libs.common.bus.nats.nats_access import NatsAccess, without_password
from libs.common.bus.protocol import BusError, BusHooks
from libs.common.clocks import loop_time

log = logging.getLogger(__name__)
_VIOLATION_SHOWN_SECONDS: Final = 60.0
_CLOSED: Final = "the bus was closed"


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Every timeout and interval of the adapter, in seconds."""

    connect: float = 2.0
    probe_every: float = 3.0
    probe_deadline: float = 3.0
    retry_first: float = 0.2
    retry_cap: float = 5.0
    publish_deadline: float = 5.0
    pull_expires: float = 30.0
    pull_heartbeat: float = 2.0
    pull_silence: float = 5.0  # more than two missed heartbeats: no server serves the pull
    consumer_retry_cap: float = 2.0
    follow_retry_cap: float = 10.0
    follower_kept: float = 20.0  # the server deletes an ephemeral consumer without pulls after this time
    finish_handlers: float = 20.0


@dataclass(eq=False)
class ConnectionSupervisor:
    """The current connection, or the reason why there is none."""

    access: NatsAccess
    _: KW_ONLY
    timing: Timeouts
    hooks: BusHooks
    jitter: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        self._connection: Connection | None = None
        self._up = asyncio.Event()
        self._reason = "not connected yet"
        self._violation = ("", float("-inf"))
        self._closed = False
        self._tried = asyncio.Event()

    async def run(self) -> None:
        """Supervise until cancelled."""
        servers = self.access.servers
        turn = int(self.jitter() * len(servers))
        attempt = 0
        while not self._closed:
            started = loop_time()
            reason = await self._try(servers[turn % len(servers)])
            self._tried.set()
            if reason is None:
                return
            self._set_reason(reason)
            is_stable = loop_time() - started > self.timing.retry_cap + self.timing.connect
            attempt = 1 if is_stable else attempt + 1
            turn += 1
            # Try each server once without delay, then wait before the next round.
            if attempt % len(servers) == 0:
                await asyncio.sleep(self.backoff(attempt // len(servers), self.timing.retry_cap))

    async def _try(self, server: str) -> str | None:
        """Connect and serve until the connection ends; return the reason, None if the bus was closed."""
        try:
            connection = await Connection.open(
                self.access, server, seconds=self.timing.connect, on_violation=self._on_violation
            )
        except BusError as error:
            return str(error)
        if self._closed:  # before Python 3.12, wait_for in nats-py can drop the cancellation that follows
            await connection.abort(_CLOSED)
            return None
        return f"NATS at {without_password(server)}: {await self._serve(connection)}"

    async def wait_for_first_attempt(self) -> None:
        """Return once the first attempt to connect has succeeded or failed."""
        await self._tried.wait()

    def backoff(self, attempt: int, cap: float) -> float:
        """Return the wait before that attempt is repeated, in seconds."""
        return backoff_seconds(attempt, self.jitter(), first=self.timing.retry_first, cap=cap)

    async def wait_for_connection(self, seconds: float | None = None) -> Connection:
        """Return the connection; wait for one at most `seconds`. Raises BusError with the reason."""
        try:
            async with asyncio.timeout(seconds):
                while self._connection is None and not self._closed:
                    await self._up.wait()
        except TimeoutError as error:
            raise BusError(self._reason) from error
        if self._connection is None:
            raise BusError(f"{self.access}: the bus is closed")
        return self._connection

    @property
    def current(self) -> Connection | None:
        """The current connection, None without one."""
        return self._connection

    async def send(self, subject: str, payload: bytes) -> None:
        """Send over the current connection. Raises BusError if there is none."""
        if self._connection is None:
            raise BusError(self._reason)
        await self._connection.send(subject, payload)

    def close(self) -> None:
        """Stop waiting for connections. The caller then cancels `run`."""
        self._closed = True
        self._up.set()

    def problems(self) -> tuple[str, ...]:
        """Return why there is no connection, and permission violations of the last minute."""
        found = [] if self._connection else [f"{self._reason}, retrying every {self.timing.retry_cap:g} s"]
        text, at = self._violation
        if text and loop_time() - at < _VIOLATION_SHOWN_SECONDS:
            found.append(f"{self.access} denied permission: {text}")
        return tuple(found)

    async def _serve(self, connection: Connection) -> str:
        self._connection = connection
        self._up.set()
        self._tried.set()
        self.hooks.connected()
        log.info("connected to NATS", extra={"to": str(self.access)})
        reason = _CLOSED
        try:
            reason = await self._probe(connection)
        finally:
            self._connection = None
            if not self._closed:
                self._up.clear()
            self.hooks.disconnected(reason)
            await connection.abort(reason)
        return reason

    async def _probe(self, connection: Connection) -> str:
        """Return why the connection ended. It is pinged even while a publish backlog is stuck."""
        while True:
            done, _ = await asyncio.wait({connection.closed}, timeout=self.timing.probe_every)
            if done:
                return connection.closed.result()
            try:
                await connection.round_trip(self.timing.probe_deadline)
            except BusError:
                return f"no answer to a ping within {self.timing.probe_deadline:g} s"

    def _set_reason(self, reason: str) -> None:
        if reason != self._reason:
            log.warning("no connection to NATS", extra={"reason": reason})
        self._reason = reason

    def _on_violation(self, text: str) -> None:
        self._violation = (text, loop_time())
        self.hooks.permission_violation(text)
        log.error("NATS permission violation", extra={"violation": text})
