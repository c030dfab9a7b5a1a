"""COSI watches on one machine: what it looks like when they open, then that it has changed."""

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from types import TracebackType
from typing import NoReturn, Self

from libs.common.machine import FaultKind, MachineFault
from services.metadata.talos_api.channel import CallEnded, CallUnderWay, StreamLost, TalosChannel
from services.metadata.talos_api.checked import Unreadable
from services.metadata.talos_api.faults import fault_of_status
from services.metadata.talos_api.machine_events import Contents, Opening, WatchErrored, contents_of
from services.metadata.talos_api.news import News
from services.metadata.talos_api.resources import WATCH, WATCHED, Asked
from services.metadata.talos_api.session import MachineUnavailable


class MachineWatch:
    """Watches platform metadata, addresses and node name, or what else is said, while its context lasts."""

    def __init__(self, machine: str, watched: Sequence[Asked] = WATCHED) -> None:
        self._machine = machine
        self._watched = watched
        self._has_changed = False
        self._woken = News()
        self._ended: list[tuple[Asked, Exception | None]] = []
        self._watches: list[_Watch] = []
        self._at = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watch in self._watches:
            watch.cancel()

    async def open(self, channel: TalosChannel, headers: dict[str, str], *, deadline: float) -> Contents:
        """What the watches found when they opened: every later change will be told.

        Raises MachineUnavailable.
        """
        self._at = f"{channel.endpoint} for {self._machine}"
        for asked in self._watched:
            self._watches.append(_Watch(asked, self._heard, self._end))
        for watch in self._watches:
            watch.begin(channel, headers)
        try:
            async with asyncio.timeout_at(deadline):
                while self._unopened() and not self._has_ended():
                    await self._sleep()
        except TimeoutError as error:
            self._unavailable("timeout", self._unopened()[0], "no watch in time", error)
        if unopened := self._unopened():
            self._unavailable("internal", unopened[0], "the watch ended at once", None)
        try:
            return contents_of({watch.asked: watch.opening for watch in self._watches})
        except Unreadable as error:
            self._unavailable("invalid", self._watched[0], str(error), error)
        finally:
            for watch in self._watches:
                watch.opening.forget()

    async def changed(self, read_deadline_seconds: float) -> bool:
        """True if something has changed since the last call, False if a stream has ended or all are silent.

        Silence may be a half-open connection, so it ends the watch. Raises MachineUnavailable.
        """
        try:
            async with asyncio.timeout(read_deadline_seconds):
                while not self._has_changed:
                    if self._has_ended():
                        return False
                    await self._sleep()
        except TimeoutError:
            return False
        self._has_changed = False
        return True

    def _unopened(self) -> list[Asked]:
        return [watch.asked for watch in self._watches if not watch.opening.is_open]

    def _has_ended(self) -> bool:
        """Raises MachineUnavailable, unless the server ended a watch without any reason."""
        for asked, error in self._ended:
            match error:
                case None:
                    continue
                case CallEnded():
                    fault = fault_of_status(error.status, step=asked.step, asked=self._at)
                    raise MachineUnavailable(fault) from error
                case StreamLost():
                    self._unavailable("refused", asked, f"the watch was lost: {error}", error)
                case WatchErrored():
                    self._unavailable("internal", asked, f"the watch is broken: {error}", error)
                case _:
                    self._unavailable("invalid", asked, str(error), error)
        return bool(self._ended)

    def _unavailable(self, kind: FaultKind, asked: Asked, message: str, cause: Exception | None) -> NoReturn:
        fault = MachineFault(kind=kind, step=asked.step, endpoint=self._at, message=message)
        raise MachineUnavailable(fault) from cause

    async def _sleep(self) -> None:
        await self._woken.wait()
        self._woken.clear()

    def _heard(self, has_changed: bool) -> None:
        self._has_changed = self._has_changed or has_changed
        self._woken.set()

    def _end(self, asked: Asked, error: Exception | None) -> None:
        self._ended.append((asked, error))
        self._woken.set()


class _Watch:
    """One of them."""

    __slots__ = ("_call", "_end", "_heard", "asked", "opening")

    def __init__(
        self,
        asked: Asked,
        heard: Callable[[bool], None],
        end: Callable[[Asked, Exception | None], None],
    ) -> None:
        self.asked = asked
        self.opening = Opening(asked)
        self._heard = heard
        self._end = end
        self._call: CallUnderWay | None = None

    def begin(self, channel: TalosChannel, headers: dict[str, str]) -> None:
        self._call = channel.follow(WATCH, _request(self.asked), headers, self)

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def hear(self, message: bytes) -> bool:
        was_open = self.opening.is_open
        has_changed = self.opening.hear(message)
        if self.opening.is_open:
            self._heard(has_changed)
        return was_open

    def end(self, error: Exception | None) -> None:
        self._end(self.asked, error)


@cache
def _request(asked: Asked) -> bytes:
    return asked.watch()
