"""The /exec endpoint of a kubelet: TLS, WebSocket v4.channel.k8s.io; containers are local commands."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

from libs.testbed.kubelets import STRATEGIC, KubeletFleet, RequestRejected
from libs.testbed.ports import allocate_port

_PROTOCOL: Final = "v4.channel.k8s.io"
_OUT, _ERR, _STATUS = b"\x01", b"\x02", b"\x03"
_CHUNK_BYTES: Final = 32 * 1024


class ExecKubelet:
    """One node; its containers run `python` as this interpreter, each with its own environment."""

    def __init__(self, node: str, port: int) -> None:
        self.node = node
        self.port = port
        self.commands: list[tuple[str, ...]] = []  # the executed commands, in order
        self._env: dict[tuple[str, str, str], Mapping[str, str]] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls, node: str, certificate: Path, key: Path, admin: KubeletFleet
    ) -> AsyncIterator[ExecKubelet]:  # fmt: skip
        """Listen on 127.0.0.1, and create the Node with this address and port."""
        kubelet = cls(node, allocate_port())
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate, key)
        app = web.Application()
        app.router.add_route("*", "/exec/{namespace}/{pod}/{container}", kubelet._exec)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", kubelet.port, ssl_context=tls).start()
            await kubelet._register(admin)
            yield kubelet
        finally:
            await admin.request("DELETE", f"/api/v1/nodes/{node}")
            await runner.cleanup()

    async def run_pod(
        self,
        admin: KubeletFleet,
        *,
        namespace: str,
        name: str,
        labels: Mapping[str, str],
        container: str,
        env: Mapping[str, str],
        ready: bool = True,
    ) -> None:
        """Create a Pod on this node and report it as ready, or not."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        spec = {
            "nodeName": self.node,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": container, "image": "none"}],
        }
        pod = {"metadata": {"name": name, "labels": dict(labels)}, "spec": spec}
        await _send_checked(admin, "POST", path, {"apiVersion": "v1", "kind": "Pod", **pod})
        self._env[namespace, name, container] = env
        word = "True" if ready else "False"
        waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting"}}
        running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        statuses = [
            {
                "name": container,
                "ready": ready,
                "restartCount": 0 if ready else 7,
                "image": "none",
                "imageID": "",
                "state": running if ready else waiting,
            }
        ]
        conditions = [{"type": "Ready", "status": word}, {"type": "PodScheduled", "status": "True"}]
        status = {"phase": "Running", "conditions": conditions, "containerStatuses": statuses}
        await _send_checked(admin, "PATCH", f"{path}/{name}/status", {"status": status})

    async def delete_pod(self, admin: KubeletFleet, *, namespace: str, name: str) -> None:
        """Delete the Pod without a grace period."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        await admin.request("DELETE", path, body={"gracePeriodSeconds": 0})

    async def _register(self, admin: KubeletFleet) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node}}
        await _send_checked(admin, "POST", "/api/v1/nodes", node)
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
        }
        await _send_checked(admin, "PATCH", f"/api/v1/nodes/{self.node}/status", {"status": status})

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        place = (request.match_info["namespace"], request.match_info["pod"], request.match_info["container"])
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


async def _send_checked(admin: KubeletFleet, method: str, path: str, body: Any) -> None:
    kind = {"content_type": STRATEGIC} if method == "PATCH" else {}
    answer = await admin.request(method, path, body=body, **kind)
    if answer.status not in (HTTPStatus.OK, HTTPStatus.CREATED):
        raise RequestRejected(f"{method} {path}", answer)
