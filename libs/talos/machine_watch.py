"""COSI watches on one machine: its state when they open, and then whether it has changed."""

import asyncio
from collections.abc import Sequence
from functools import cache
from types import TracebackType
from typing import Final, Self

from libs.common.contract.machine import FaultKind
from libs.talos.channel import CallEnded, MessageStream, StreamLost, TalosChannel
from libs.talos.faults import translate_status
from libs.talos.machine_events import (
    WatchErrored,
    WatchOpening,
    WatchSnapshot,
    build_snapshot,
)
from libs.talos.proto.strict import InvalidResponse
from libs.talos.resources import WATCH, WATCHED_RESOURCES, ResourceRef
from libs.talos.session import MachineUnavailable
from libs.talos.stream_buffer import WaiterEvent

PAUSE_SECONDS: Final = 0.05  # flow control limits a machine that floods its watch


class MachineWatch:
    """Watches resources of a machine while its context is open, by default WATCHED_RESOURCES.

    The task of the caller reads all its streams: tasks of their own took a third of the memory of a watch.
    """

    __slots__ = (
        "_arrived",
        "_ended",
        "_endpoint",
        "_has_changed",
        "_machine",
        "_must_pause",
        "_openings",
        "_resources",
        "_streams",
    )

    def __init__(self, machine: str, resources: Sequence[ResourceRef] = WATCHED_RESOURCES) -> None:
        self._machine = machine
        self._resources = resources
        self._has_changed = False
        self._must_pause = False
        self._arrived = WaiterEvent()
        self._openings: dict[ResourceRef, WatchOpening] = {}
        self._streams: dict[ResourceRef, MessageStream] = {}  # those that have not ended
        self._ended: list[tuple[ResourceRef, Exception | None]] = []
        self._endpoint = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self._streams.values():
            await stream.close()

    async def open(self, channel: TalosChannel, headers: dict[str, str], *, deadline: float) -> WatchSnapshot:
        """Open the watches; return the current state. All later changes are reported.

        Raises MachineUnavailable.
        """
        self._endpoint = f"{channel.endpoint} for {self._machine}"
        self._openings = {asked: WatchOpening(asked) for asked in self._resources}
        try:
            async with asyncio.timeout_at(deadline):
                for asked in self._resources:
                    await self._open_stream(channel, headers, asked)
                while self._list_unopened() and not self._has_ended():
                    await self._read_arrived()
        except TimeoutError as error:
            raise self._make_error("timeout", self._list_unopened()[0], "no watch in time") from error
        if unopened := self._list_unopened():
            raise self._make_error("internal", unopened[0], "the watch ended at once")
        try:
            return build_snapshot(self._openings)
        except InvalidResponse as error:
            raise self._make_error("invalid", self._resources[0], str(error)) from error
        finally:
            for opening in self._openings.values():
                opening.release()

    async def wait_for_change(self, read_deadline_seconds: float) -> bool:
        """Return True after a change since the last call, False if a watch has ended or all are silent.

        Silence may be a half-open connection, so it ends the watch. Raises MachineUnavailable.
        """
        try:
            async with asyncio.timeout(read_deadline_seconds):
                while not self._has_changed:
                    if self._has_ended():
                        return False
                    await self._read_arrived()
        except TimeoutError:
            return False
        self._has_changed = False
        return True

    def _list_unopened(self) -> list[ResourceRef]:
        return [asked for asked, opening in self._openings.items() if not opening.is_open]

    def _has_ended(self) -> bool:
        """Return whether a watch has ended. Raises MachineUnavailable if it ended with a reason."""
        for asked, error in self._ended:
            match error:
                case None:
                    continue
                case CallEnded():
                    fault = translate_status(error.status, step=asked.step, asked=self._endpoint)
                    raise MachineUnavailable(fault) from error
                case StreamLost():
                    raise self._make_error("refused", asked, f"the watch was lost: {error}") from error
                case WatchErrored():
                    raise self._make_error("internal", asked, f"the watch is broken: {error}") from error
                case _:
                    raise self._make_error("invalid", asked, str(error)) from error
        return bool(self._ended)

    def _make_error(self, kind: FaultKind, ref: ResourceRef, message: str) -> MachineUnavailable:
        return MachineUnavailable.because(kind, ref.step, message, self._endpoint)

    async def _open_stream(self, channel: TalosChannel, headers: dict[str, str], asked: ResourceRef) -> None:
        try:
            self._streams[asked] = await channel.follow(WATCH, _request(asked), headers, self._arrived)
        except (CallEnded, StreamLost, InvalidResponse) as error:
            self._ended.append((asked, error))

    async def _read_arrived(self) -> None:
        """Wait for messages, and read one of each stream that has one."""
        if self._must_pause:
            await asyncio.sleep(PAUSE_SECONDS)
        self._must_pause = False
        readable = [asked for asked, stream in self._streams.items() if stream.is_readable]
        if not readable:
            self._arrived.clear()
            await self._arrived.wait()
        for asked in readable:
            await self._read(asked)

    async def _read(self, asked: ResourceRef) -> None:
        opening, stream = self._openings[asked], self._streams[asked]
        error: Exception | None = None
        try:
            message = await stream.receive()
            if message is not None:
                self._must_pause |= opening.is_open
                self._has_changed |= bool(opening.apply(message))
                return
        except (CallEnded, StreamLost, InvalidResponse, WatchErrored) as ended:
            error = ended.with_traceback(None)  # its frames would keep the machine's watches alive
        del self._streams[asked]
        await stream.close()
        self._ended.append((asked, error))


@cache
def _request(ref: ResourceRef) -> bytes:
    return ref.watch()
