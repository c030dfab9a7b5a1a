"""Three COSI watches on one machine: what it looks like when they open, then that it has changed."""

import asyncio
from types import TracebackType
from typing import Self

from services.metadata.talos_api.calls import unavailable
from services.metadata.talos_api.channel import CallEnded, StreamLost, TalosChannel
from services.metadata.talos_api.faults import fault_of_status
from services.metadata.talos_api.machine_events import Contents, Opening, WatchErrored, contents_of
from services.metadata.talos_api.machine_reading import Unreadable
from services.metadata.talos_api.resources import WATCH, WATCHED, Asked
from services.metadata.talos_api.session import MachineUnavailable


class MachineWatch:
    """Watches platform metadata, addresses and node name while its context lasts."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._openings = {asked: Opening(asked) for asked in WATCHED}
        self._has_changed = False
        self._woken = asyncio.Event()
        self._streams: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self._streams:
            stream.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)

    async def open(self, channel: TalosChannel, headers: dict[str, str], *, deadline: float) -> Contents:
        """What the watches found when they opened: every later change will be told.

        Raises MachineUnavailable.
        """
        for asked in WATCHED:
            stream = asyncio.create_task(
                self._follow(channel, headers, asked), name=f"watch {asked.step} of {self._machine}"
            )
            stream.add_done_callback(self._wake)
            self._streams.append(stream)
        try:
            async with asyncio.timeout_at(deadline):
                while self._unopened() and not await self._has_ended():
                    await self._sleep()
        except TimeoutError as error:
            unavailable("timeout", self._unopened()[0], channel, self._machine, "no watch in time", error)
        if unopened := self._unopened():
            unavailable("internal", unopened[0], channel, self._machine, "the watch ended at once", None)
        try:
            return contents_of(self._openings)
        except Unreadable as error:
            unavailable("invalid", WATCHED[0], channel, self._machine, str(error), error)
        finally:
            self._openings.clear()

    async def changed(self, read_deadline_seconds: float) -> bool:
        """True if something has changed since the last call, False if a stream has ended or all are silent.

        Silence may be a half-open connection, so it ends the watch. Raises MachineUnavailable.
        """
        try:
            async with asyncio.timeout(read_deadline_seconds):
                while not self._has_changed:
                    if await self._has_ended():
                        return False
                    await self._sleep()
        except TimeoutError:
            return False
        self._has_changed = False
        return True

    def _unopened(self) -> list[Asked]:
        return [asked for asked, opening in self._openings.items() if not opening.is_open]

    async def _has_ended(self) -> bool:
        ended = [stream for stream in self._streams if stream.done()]
        for stream in ended:
            await stream  # raises what it ended with
        return bool(ended)

    async def _sleep(self) -> None:
        await self._woken.wait()
        self._woken.clear()

    def _wake(self, _: object = None) -> None:
        self._woken.set()

    async def _follow(self, channel: TalosChannel, headers: dict[str, str], asked: Asked) -> None:
        opening = self._openings[asked]

        def on_message(message: bytes) -> bool:
            was_open = opening.is_open
            if opening.hear(message):
                self._has_changed = True
            if opening.is_open:
                self._wake()
            return was_open

        try:
            await channel.follow(WATCH, asked.watch(), headers, on_message)
        except CallEnded as ended:
            at = f"{channel.endpoint} for {self._machine}"
            raise MachineUnavailable(fault_of_status(ended.status, step=asked.step, asked=at)) from ended
        except StreamLost as error:
            unavailable("refused", asked, channel, self._machine, f"the watch was lost: {error}", error)
        except WatchErrored as error:
            unavailable("internal", asked, channel, self._machine, f"the watch is broken: {error}", error)
        except Unreadable as error:
            unavailable("invalid", asked, channel, self._machine, str(error), error)
