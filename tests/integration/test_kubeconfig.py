"""Kubeconfigs of an operator's laptop: credential plugins, id-tokens and proxies, as kubectl uses them."""

import asyncio
import base64
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from aiohttp import web

from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Forbidden, NotFound, Unauthorized, Unreachable
from libs.common.kube.kube_config import ExecCredential, ExecPlugin, KubeConfigError
from libs.common.kube.load_kube_config import load_kube_config
from libs.testbed.control_plane.control_plane import ControlPlane
from tests.bus_actors import wait_until
from tests.kube_loopback import LoopbackServer, open_api, refusal, respond_error, respond_node
from tests.tcp_server import serve_tcp

V1 = "client.authentication.k8s.io/v1"
LONG_EXPIRY = "2126-01-01T00:00:00Z"


def write_plugin(folder: Path, script: str) -> Path:
    program = folder / "login"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def make_plugin(program: Path) -> ExecPlugin:
    return ExecPlugin(
        field="user me, exec", api_version=V1, command=str(program), env={"PATH": os.environ["PATH"]}
    )


def print_credential(status: Any = None, **fields: str) -> str:
    credential = {"apiVersion": V1, "kind": "ExecCredential", "status": status or fields}
    return f"cat <<'END'\n{msgspec.json.encode(credential).decode()}\nEND"


@pytest.fixture
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == [], "a file was left"


# ---- credential plugins


async def run_plugin(plugin: ExecPlugin, **limits: float) -> ExecCredential:
    """Import the library late: at the collection it costs each worker a third of a second."""
    from libs.common.kube.exec_plugins import run_plugin

    return await run_plugin(plugin, **limits)


async def test_a_plugin_that_hangs_is_ended_with_all_that_it_has_started(tmp_path: Path):
    program = write_plugin(
        tmp_path, f"sleep 600 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/pid; wait"
    )
    with pytest.raises(KubeConfigError, match=r"login failed: .*it took over 1 s"):
        await run_plugin(make_plugin(program), seconds=1.0)
    for name in ("pid", "child"):
        await wait_until(partial(has_ended, tmp_path / name), f"{name} ended")


def test_a_plugin_is_heard_on_uvloop(tmp_path: Path):
    program = write_plugin(tmp_path, print_credential(token="t0ken"))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run_plugin(make_plugin(program))).token == "t0ken"


def has_ended(pid_file: Path) -> bool:
    try:
        status = Path(f"/proc/{int(pid_file.read_text())}/stat").read_text()
    except FileNotFoundError:
        return True
    return status.rpartition(")")[2].split()[0] == "Z"


async def test_a_plugin_may_print_much_to_its_error_output_first(tmp_path: Path):
    much = "head -c 300000 /dev/zero | tr '\\0' x >&2"  # more than a pipe takes
    program = write_plugin(tmp_path, f"{much}\n{print_credential(token='t0ken')}")
    assert (await run_plugin(make_plugin(program))).token == "t0ken"


async def test_a_plugin_knows_that_it_has_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    script = f'echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/info; cat > {tmp_path}/input'
    program = write_plugin(tmp_path, f"{script}\n{print_credential(token='t')}")
    await run_plugin(make_plugin(program))
    info = msgspec.json.decode((tmp_path / "info").read_bytes())
    assert info == {"apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": False}}
    assert (tmp_path / "input").read_text() == ""


@pytest.mark.usefixtures("temporary_files")
async def test_a_client_certificate_of_a_plugin_is_used_until_it_expires_and_never_written(
    control_plane: ControlPlane, tmp_path: Path
):
    def become(user: str, expiry: str) -> None:
        certificate, key = (path.read_text() for path in control_plane.client(user))
        status = print_credential(
            clientCertificateData=certificate, clientKeyData=key, expirationTimestamp=expiry
        )
        write_plugin(tmp_path, status)

    become("stranger", "2020-01-01T00:00:00Z")
    api = open_with(control_plane, tmp_path, user={"exec": {"apiVersion": V1, "command": "./login"}})
    try:
        with pytest.raises(Forbidden, match="stranger"):
            await api.get_node("web-1")
        become("admin", LONG_EXPIRY)  # the first one has expired
        for _ in range(2):
            with pytest.raises(NotFound):
                await api.get_node("web-1")
    finally:
        await api.close()


@pytest.mark.usefixtures("temporary_files")
async def test_a_key_within_the_kubeconfig_is_never_written(control_plane: ControlPlane, tmp_path: Path):
    certificate, key = (base64.b64encode(path.read_bytes()).decode() for path in control_plane.client())
    user = {"client-certificate-data": certificate, "client-key-data": key}
    api = open_with(control_plane, tmp_path, user=user)
    with pytest.raises(NotFound):
        await api.get_node("web-1")
    await api.close()


def plugin_user(folder: Path, script: str) -> dict[str, Any]:
    """A user whose plugin runs that script and counts its runs in `runs`."""
    write_plugin(folder, f"echo run >> {folder}/runs\n{script}")
    return {"exec": {"apiVersion": V1, "command": "./login", "installHint": "get it from the shop"}}


def count_runs(folder: Path) -> int:
    return len((folder / "runs").read_text().splitlines())


async def test_a_plugin_runs_once_for_all_who_wait_and_not_again_before_its_token_expires(
    server: LoopbackServer, tmp_path: Path
):
    server.answer = respond_node
    script = print_credential(token="from-plugin", expirationTimestamp=LONG_EXPIRY)
    async with open_api(server.url, tmp_path, plugin_user(tmp_path, script)) as api:
        await asyncio.gather(*(api.get_node("web-1") for _ in range(20)))
        await api.get_node("web-1")
    assert count_runs(tmp_path) == 1
    assert {request.headers["Authorization"] for request in server.requests} == {"Bearer from-plugin"}


async def test_a_plugins_token_that_has_expired_or_is_refused_is_asked_for_again(
    server: LoopbackServer, tmp_path: Path
):
    async def refuse_once(request: web.Request) -> web.StreamResponse:
        server.answer = respond_node
        plugin_user(tmp_path, print_credential(token="another"))
        return respond_error(401, "Unauthorized")

    server.answer = respond_node
    user = plugin_user(tmp_path, print_credential(token="t", expirationTimestamp="2020-01-01T00:00:00Z"))
    async with open_api(server.url, tmp_path, user) as api:
        for _ in range(2):
            await api.get_node("web-1")
        assert count_runs(tmp_path) == 2
        server.answer = refuse_once
        assert (await api.get_node("web-1")).name == "web-1"
    assert server.requests[-1].headers["Authorization"] == "Bearer another"


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (print_credential({"other": "field"}), "printed no token and no certificate"),
        ("echo not logged in >&2; exit 3", "login failed: .* returned 3. not logged in"),
        (r"printf 'gr\374n' >&2; exit 3", "login failed: .* returned 3. gr.n"),
        ("kill -9 $$", "login failed: .* returned 137"),
        (print_credential(7), "login failed: Expected `object`, got `int`"),
        ("echo 7", "login failed: "),
        ("echo nonsense", "login failed: .*decode"),
    ],
)
async def test_a_plugin_that_fails_is_named_with_what_it_said(
    server: LoopbackServer, tmp_path: Path, script: str, complaint: str
):
    async with open_api(server.url, tmp_path, plugin_user(tmp_path, script)) as api:
        with pytest.raises(Unauthorized, match=rf"user me, exec: .*{complaint}"):
            await api.get_node("web-1")
    assert server.requests == []


async def test_a_plugin_that_is_not_installed_comes_with_its_hint(server: LoopbackServer, tmp_path: Path):
    user = plugin_user(tmp_path, "")
    (tmp_path / "login").unlink()
    async with open_api(server.url, tmp_path, user) as api:
        with pytest.raises(Unauthorized, match=r"cannot run .*login: no such program.*get it from the shop"):
            await api.get_node("web-1")


# ---- id-tokens


async def test_an_id_token_that_has_expired_is_rejected_with_what_to_do(
    server: LoopbackServer, tmp_path: Path
):
    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).decode().rstrip("=")

    token = ".".join((part(b"{}"), part(b'{"exp":1600000000}'), part(b"x")))
    provider = {
        "name": "oidc",
        "config": {"id-token": token, "refresh-token": "r", "idp-issuer-url": "http://x"},
    }
    server.answer = refusal(401, "Unauthorized")
    async with open_api(server.url, tmp_path, {"auth-provider": provider}) as api:
        with pytest.raises(Unauthorized, match="id-token has expired: any command of kubectl renews it"):
            await api.get_node("web-1")
        assert {request.headers["Authorization"] for request in server.requests} == {f"Bearer {token}"}


# ---- proxies


class TunnelProxy:
    """A proxy that tunnels CONNECT, or rejects it with `status`."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.status = 200
        self.address = ""

    @classmethod
    @asynccontextmanager
    async def start(cls) -> AsyncIterator["TunnelProxy"]:
        proxy = cls()
        async with serve_tcp(proxy._serve) as port:
            proxy.address = f"127.0.0.1:{port}"
            yield proxy

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        if self.status != 200:
            writer.write(f"HTTP/1.1 {self.status} No\r\nContent-Length: 0\r\n\r\n".encode())
            return
        host, _, port = head.split(" ")[1].rpartition(":")
        remote_reader, remote_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(_copy(reader, remote_writer), _copy(remote_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


def open_with(
    control_plane: ControlPlane,
    folder: Path,
    *,
    cluster: Mapping[str, str] | None = None,
    user: Mapping[str, Any] | None = None,
) -> KubeApi:
    """A client by the control plane's kubeconfig with these changes."""
    document = msgspec.yaml.decode(control_plane.kubeconfig().read_bytes())
    document["clusters"][0]["cluster"] |= cluster or {}
    if user is not None:
        document["users"][0]["user"] = user
    path = folder / "config"
    path.write_bytes(msgspec.yaml.encode(document))
    return KubeApi(load_kube_config(path, {"PATH": os.environ["PATH"]}), user_agent="t")


async def test_all_requests_go_through_the_proxy(control_plane: ControlPlane, tmp_path: Path):
    target = control_plane.server.removeprefix("https://")
    async with TunnelProxy.start() as proxy:
        for name in ("", "kubernetes.default.svc"):
            api = open_with(
                control_plane,
                tmp_path,
                cluster={"proxy-url": f"http://me:hunter2@{proxy.address}", "tls-server-name": name},
            )
            with pytest.raises(NotFound):
                await api.get_node("web-1")
            with pytest.raises(Unreachable, match="proxy-url hides the certificate"):
                await api.fetch_server_identity()
            await api.close()
    assert [head.split("\r\n")[0] for head in proxy.heads] == [f"CONNECT {target} HTTP/1.1"] * 2
    password = base64.b64encode(b"me:hunter2").decode()
    assert all(f"Proxy-Authorization: Basic {password}" in head for head in proxy.heads)


async def test_the_name_of_the_certificate_is_verified_behind_a_proxy(
    control_plane: ControlPlane, tmp_path: Path
):
    async with TunnelProxy.start() as proxy:
        changes = {"proxy-url": f"http://{proxy.address}", "tls-server-name": "another.example"}
        api = open_with(control_plane, tmp_path, cluster=changes)
        with pytest.raises(Unreachable, match="certificate not trusted"):
            await api.get_node("web-1")
        await api.close()


async def test_a_proxy_that_rejects_or_is_not_there_is_named_without_its_password(
    control_plane: ControlPlane, tmp_path: Path
):
    async with TunnelProxy.start() as proxy:
        proxy.status = 407
        proxy_url = f"http://me:hunter2@{proxy.address}"
        api = open_with(control_plane, tmp_path, cluster={"proxy-url": proxy_url})
        with pytest.raises(Unreachable, match=r"the proxy rejected the connection \(407 No\)") as rejected:
            await api.get_node("web-1")
    with pytest.raises(Unreachable, match=r"cannot connect to the proxy .*check proxy-url") as missing:
        await api.get_node("web-1")
    await api.close()
    assert "hunter2" not in f"{rejected.value}{missing.value}"
