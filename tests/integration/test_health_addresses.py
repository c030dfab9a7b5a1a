"""On which addresses the health port is served, by --bind-address."""

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from libs.common.service.health import Readiness, make_health_application
from libs.common.service.listener import bind_sockets
from libs.common.service.web_listener import WebListener
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import SettingsError

IPV4, IPV6 = "127.0.0.1", "::1"
UNSPECIFIED = ("0.0.0.0", "::", "")


@pytest.fixture(autouse=True, scope="module")
def ipv6_loopback() -> None:
    """These tests need ::1 and fail without it: that is better than a silent skip."""
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind((IPV6, 0))


@asynccontextmanager
async def serving(address: str) -> AsyncIterator[int]:
    server = WebListener(make_health_application(Readiness(time.monotonic)), None)
    try:
        yield await server.start(address, 0, flag="--secure-port")
    finally:
        await server.stop()


async def serves(address: str, port: int) -> bool:
    host = f"[{address}]" if ":" in address else address
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"http://{host}:{port}/livez") as answer:
                return await answer.text() == "ok"
        except aiohttp.ClientConnectorError:
            return False


@pytest.mark.parametrize("unspecified", UNSPECIFIED)
async def test_an_unspecified_address_such_as_the_default_means_both_families(unspecified: str):
    assert ProcessSettings().bind_address in UNSPECIFIED
    async with serving(unspecified) as port:
        assert (await serves(IPV4, port), await serves(IPV6, port)) == (True, True)


@pytest.mark.parametrize(("address", "other"), [(IPV4, IPV6), (IPV6, IPV4)])
async def test_another_address_means_itself_alone(address: str, other: str):
    async with serving(address) as port:
        assert (await serves(address, port), await serves(other, port)) == (True, False)


def find_own_address() -> str:
    """The address of this host on its network; no packet is sent. Raises OSError without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("query", ["", "?verbose"])
async def test_reasons_name_nodes_only_for_callers_on_the_loopback_address(query: str):
    readiness = Readiness(time.monotonic)
    readiness.add_check("csr", lambda: ("waits for metadata's first report on 1 machine, such as web-1",))
    readiness.add_check("bus", lambda: ())
    server = WebListener(make_health_application(readiness), None)
    port = await server.start("0.0.0.0", 0, flag="--secure-port")
    seen = {}
    try:
        async with aiohttp.ClientSession() as session:
            for host in (IPV4, f"[{IPV6}]", find_own_address()):
                async with session.get(f"http://{host}:{port}/readyz{query}") as answer:
                    seen[host] = (answer.status, (await answer.text()).splitlines())
    finally:
        await server.stop()
    *local, remote = seen.values()
    assert {status for status, _ in seen.values()} == {503}
    for _, lines in local:
        assert lines[1] == "[-]csr failed: waits for metadata's first report on 1 machine, such as web-1"
    assert remote[1] == [
        "[-]process failed: reason withheld; callers on the loopback address see it",
        "[-]csr failed: reason withheld; callers on the loopback address see it",
        "[+]bus ok",
        "readyz check failed",
    ]


@pytest.mark.parametrize("off_in", ["the kernel", "this container"])
async def test_a_host_without_ipv6_serves_ipv4(off_in: str, monkeypatch: pytest.MonkeyPatch):
    create_server = socket.create_server

    def refuse_ipv6(address: tuple[str, int], **options: Any) -> socket.socket:
        if ":" in address[0]:
            raise OSError(errno.EADDRNOTAVAIL, "no IPv6 here")
        return create_server(address, **options)

    monkeypatch.setattr(socket, "create_server", refuse_ipv6)
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: off_in == "this container")
    (bound,) = await bind_sockets("0.0.0.0", 0)
    with bound:
        assert bound.family == socket.AF_INET
        assert bound.getsockname()[0] == "0.0.0.0"


async def test_a_port_that_is_taken_in_one_family_is_refused():
    with socket.create_server((IPV4, 0)) as taken:
        server = WebListener(make_health_application(Readiness(time.monotonic)), None)
        with pytest.raises(SettingsError, match=r"cannot listen on 0\.0\.0\.0:\d+: Address already in use"):
            await server.start("0.0.0.0", taken.getsockname()[1], flag="--secure-port")


async def test_callers_of_both_families_share_one_limit_and_are_told_apart():
    async with serving("0.0.0.0") as port:
        streams = [
            await asyncio.open_connection(address, port) for address in (IPV4, IPV6) for _ in range(40)
        ]
        assert await serves(IPV4, port)
        assert await serves(IPV6, port)
        for _, writer in streams:
            writer.close()
