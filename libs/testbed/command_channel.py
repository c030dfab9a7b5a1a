"""JSON commands and replies over a child's stdin and stdout; several commands can be pending."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from libs.testbed.child_process import HANG_SECONDS, ChildExited, ChildProcess

_READY = 0  # the ID of the first line, which precedes any command
_END_SECONDS = 5
_LINE_BYTES = 1 << 26  # the counts of ten thousand machines are one line


class CallCount(msgspec.Struct):
    """The count of one kind of call."""

    node: str
    method: str
    type: str
    count: int


class Reply(msgspec.Struct):
    """The reply to a command."""

    id: int
    error: str = ""
    calls: list[CallCount] = []
    result: msgspec.Raw = msgspec.Raw(b"null")  # of commands of the kubelets


class CommandRejected(ValueError):
    """The process could not carry out a command; the message has its reason."""


class CommandChannel:
    """The channel to one process. If it ends, every waiter gets ChildExited with the last log lines."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child
        self._ids = itertools.count(_READY + 1)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._writer: asyncio.WriteTransport
        self._reading: asyncio.Task[None]

    async def wait_until_ready(self) -> None:
        """Return when the process reports that it is ready."""
        process = self._child.process
        assert process.stdin is not None
        assert process.stdout is not None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_LINE_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        self._writer, _ = await loop.connect_write_pipe(asyncio.Protocol, process.stdin)
        ready = self._add_waiter(_READY)
        self._reading = asyncio.create_task(self._read_replies(reader))
        async with asyncio.timeout(HANG_SECONDS):
            await ready

    async def send_command(
        self, command: str, *, answer_seconds: float = HANG_SECONDS, **arguments: Any
    ) -> Reply:
        """Send a command and return its reply. Raises CommandRejected."""
        if self._reading.done():
            raise self._make_exit_error()
        number = next(self._ids)
        answered = self._add_waiter(number)
        self._writer.write(msgspec.json.encode({"id": number, "do": command, **arguments}) + b"\n")
        async with asyncio.timeout(answer_seconds):
            reply = await answered
        if reply.error:
            raise CommandRejected(f"{self._child.name} rejected {command}: {reply.error}")
        return reply

    async def close(self) -> None:
        """Close stdin, so that the process ends; kill it if it does not end, or if it never started."""
        if not hasattr(self, "_reading"):  # cancelled within `wait_until_ready`
            await self._child.kill()
            return
        self._writer.close()
        if (await asyncio.wait({self._reading}, timeout=_END_SECONDS))[1]:
            self._child.process.kill()
        await self._reading
        await self._child.wait()

    def _add_waiter(self, number: int) -> asyncio.Future[Reply]:
        self._waiting[number] = asyncio.get_running_loop().create_future()
        return self._waiting[number]

    async def _read_replies(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            reply = msgspec.json.decode(line, type=Reply)
            waiting = self._waiting.pop(reply.id)
            if not waiting.done():
                waiting.set_result(reply)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._make_exit_error())

    def _make_exit_error(self) -> ChildExited:
        return ChildExited(f"{self._child.name} ended:\n{self._child.tail()}")


@contextlib.asynccontextmanager
async def open_channel(child: ChildProcess) -> AsyncIterator[CommandChannel]:
    """Yield the channel to a process once it is ready; the process ends with the context."""
    channel = CommandChannel(child)
    try:
        await channel.wait_until_ready()
        yield channel
    finally:
        await channel.close()
