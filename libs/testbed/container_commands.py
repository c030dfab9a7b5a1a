"""Commands in containers, over the WebSocket v4.channel.k8s.io; containers are local processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

_PROTOCOL: Final = "v4.channel.k8s.io"
_OUT, _ERR, _STATUS = b"\x01", b"\x02", b"\x03"
_CHUNK_BYTES: Final = 32 * 1024


class ContainerCommands:
    """Runs `python` as this interpreter, with the environment of the container."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []  # the executed commands, in order
        self._env: dict[tuple[str, str, str], Mapping[str, str]] = {}
        self._logs: dict[tuple[str, str, str], Path] = {}

    def add(
        self, namespace: str, pod: str, container: str, env: Mapping[str, str], log: Path | None = None
    ) -> None:
        """Add a container; its commands have exactly this environment. Its output is in `log`."""
        self._env[namespace, pod, container] = env
        if log is not None:
            self._logs[namespace, pod, container] = log

    def read_log(self, namespace: str, pod: str, container: str, tail_lines: int | None) -> bytes:
        """Return the last lines of the output, or all; b"" without a log."""
        log = self._logs.get((namespace, pod, container))
        lines = log.read_bytes().splitlines(keepends=True) if log is not None else []
        return b"".join(lines if tail_lines is None else lines[max(0, len(lines) - tail_lines) :])

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Run a command in the container of the path `/exec/{namespace}/{pod}/{container}`."""
        names = request.match_info
        return await self.run(request, names["namespace"], names["pod"], names["container"])

    async def run(
        self, request: web.BaseRequest, namespace: str, pod: str, container: str
    ) -> web.StreamResponse:
        """Run the command of the query in this container."""
        place = (namespace, pod, container)
        if place not in self._env:
            return web.Response(status=HTTPStatus.NOT_FOUND, text="container not found")
        command = tuple(request.query.getall("command", []))
        self.commands.append(command)
        socket = web.WebSocketResponse(protocols=[_PROTOCOL])
        await socket.prepare(request)
        if socket.ws_protocol != _PROTOCOL:
            await socket.close(message=b"not a protocol of this kubelet")
            return socket
        running = asyncio.create_task(self._run(socket, command, self._env[place]))
        # the client sends nothing: this ends when it disconnects
        leaving = asyncio.create_task(socket.receive())
        await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await socket.send_bytes(_STATUS + running.result())
        for task in (running, leaving):
            task.cancel()
        await asyncio.gather(running, leaving, return_exceptions=True)
        await socket.close()
        return socket

    async def _run(
        self, socket: web.WebSocketResponse, command: tuple[str, ...], env: Mapping[str, str]
    ) -> bytes:
        """Run the command and return the status that a container runtime would report."""
        program = sys.executable if command[0] == "python" else command[0]
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *command[1:],
                env=env,
                cwd="/",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            return _make_status(f"exec: {command[0]!r}: {error}", reason="InternalError")
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            await asyncio.gather(
                _forward_output(process.stdout, socket, _OUT), _forward_output(process.stderr, socket, _ERR)
            )
            return _make_exit_status(await process.wait())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _forward_output(
    stream: asyncio.StreamReader, socket: web.WebSocketResponse, channel: bytes
) -> None:
    while data := await stream.read(_CHUNK_BYTES):
        await socket.send_bytes(channel + data)


def _make_exit_status(code: int) -> bytes:
    if code == 0:
        return msgspec.json.encode({"metadata": {}, "status": "Success"})
    details = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
    return _make_status(
        f"command terminated with exit code {code}", reason="NonZeroExitCode", details=details
    )


def _make_status(message: str, *, reason: str, details: Any = None) -> bytes:
    failure = {"metadata": {}, "status": "Failure", "message": message, "reason": reason}
    return msgspec.json.encode(failure | ({"details": details} if details else {}))
