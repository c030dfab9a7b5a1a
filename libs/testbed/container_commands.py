"""Commands in containers, over the WebSocket v4.channel.k8s.io, and a kubelet that serves them over TLS.

Containers are local processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

from libs.testbed.kubelets import STRATEGIC, KubeletFleet
from libs.testbed.loopback_site import LoopbackSite
from libs.testbed.pki import make_server_context
from libs.testbed.ports import allocate_port

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


class ExecKubelet:
    """One node; its containers run `python` as this interpreter, each with its own environment."""

    def __init__(self, node: str, port: int) -> None:
        self.node = node
        self.port = port
        self._containers = ContainerCommands()

    @property
    def commands(self) -> list[tuple[str, ...]]:
        """The executed commands, in order."""
        return self._containers.commands

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls, node: str, certificate: Path, key: Path, admin: KubeletFleet
    ) -> AsyncIterator[ExecKubelet]:  # fmt: skip
        """Listen on 127.0.0.1, and create the Node with this address and port."""
        kubelet = cls(node, allocate_port())
        tls = make_server_context(certificate, key)
        app = web.Application()
        app.router.add_route("*", "/exec/{namespace}/{pod}/{container}", kubelet._serve)
        runner = web.AppRunner(app)
        site = await LoopbackSite.start(runner, "127.0.0.1", kubelet.port, tls=tls)
        try:
            await kubelet._register(admin)
            yield kubelet
        finally:
            await admin.request("DELETE", f"/api/v1/nodes/{node}")
            await site.stop()

    async def run_pod(
        self,
        admin: KubeletFleet,
        *,
        namespace: str,
        name: str,
        container: str,
        env: Mapping[str, str],
    ) -> None:
        """Create a Pod on this node and report it as running."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        spec = {
            "nodeName": self.node,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": container, "image": "none"}],
        }
        pod = {"metadata": {"name": name}, "spec": spec}
        await admin.send("POST", path, body={"apiVersion": "v1", "kind": "Pod", **pod})
        self._containers.add(namespace, name, container, env)
        status = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}
        await admin.send("PATCH", f"{path}/{name}/status", body={"status": status}, content_type=STRATEGIC)

    async def delete_pod(self, admin: KubeletFleet, *, namespace: str, name: str) -> None:
        """Delete the Pod without a grace period."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        await admin.request("DELETE", path, body={"gracePeriodSeconds": 0})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        names = request.match_info
        return await self._containers.run(request, names["namespace"], names["pod"], names["container"])

    async def _register(self, admin: KubeletFleet) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node}}
        await admin.send("POST", "/api/v1/nodes", body=node)
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
        }
        await admin.send(
            "PATCH", f"/api/v1/nodes/{self.node}/status", body={"status": status}, content_type=STRATEGIC
        )
