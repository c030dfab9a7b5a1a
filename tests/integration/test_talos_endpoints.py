"""Several endpoints, endpoints that fail in every way, and what that says about the machine behind them."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path

import pytest
from hyperframe.frame import GoAwayFrame, SettingsFrame

from libs.talos.api import MachineUnavailable, TalosApi
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.machine_fleet import MachineFleet, make_machine
from tests.bus_actors import wait_until
from tests.talos_actors import asking as asking_by
from tests.talos_actors import query_fault
from tests.tcp_server import serve_tcp


@pytest.fixture(scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MachineFleet]:
    """Machines behind two endpoints that the tests of this module cut."""
    async with MachineFleet.start(tmp_path_factory.mktemp("two-endpoints"), endpoints=2) as machines:
        await machines.put_machines(*(make_machine(f"pair-{i}", f"10.73.0.{i}") for i in range(1, 9)))
        yield machines


def asking(
    machines: MachineFleet, tmp_path: Path, *endpoints: str, connect_seconds: float = 3.0
) -> AbstractAsyncContextManager[TalosApi]:
    config = machines.write_talosconfig(tmp_path / "config", endpoints=endpoints or None)
    return asking_by(config, connect_seconds=connect_seconds)


@asynccontextmanager
async def without(machines: MachineFleet, endpoint: int) -> AsyncIterator[None]:
    """While that endpoint is cut."""
    await machines.cut_endpoint(endpoint)
    try:
        yield
    finally:
        await machines.restore_endpoint(endpoint)


async def answers(api: TalosApi, node_ip: str) -> bool:
    try:
        await api.fetch_facts(node_ip, deadline_seconds=2)
    except MachineUnavailable:
        return False
    return True


async def test_machines_are_spread_over_the_endpoints_and_all_answer_when_one_is_cut(
    pair: MachineFleet, tmp_path: Path
):
    ips = [f"10.73.0.{i}" for i in range(1, 9)]
    async with asking(pair, tmp_path) as api:
        for ip in ips:
            await api.fetch_facts(ip, deadline_seconds=HANG_SECONDS)
        async with without(pair, 0):
            facts = await asyncio.gather(*(api.fetch_facts(ip, deadline_seconds=HANG_SECONDS) for ip in ips))
        assert [each.node_ip for each in facts] == ips


async def test_a_call_under_way_on_the_endpoint_that_is_cut_is_made_again_on_the_other(
    pair: MachineFleet, tmp_path: Path
):
    async with asking(pair, tmp_path) as api:
        await api.fetch_facts("10.73.0.1", deadline_seconds=HANG_SECONDS)
        await pair.set_faults("pair-1", delay_ms=300)
        try:
            for endpoint in (0, 1):  # one of them is the one that the machine is asked by
                look = asyncio.create_task(api.fetch_facts("10.73.0.1", deadline_seconds=HANG_SECONDS))
                await pair.count_calls()
                async with without(pair, endpoint):
                    assert (await look).node_name == "pair-1"
        finally:
            await pair.set_faults("pair-1")


async def test_the_only_endpoint_cut_is_a_refusal_that_ends_when_it_is_back(
    pair: MachineFleet, tmp_path: Path
):
    async with asking(pair, tmp_path, pair.endpoints[0]) as api:
        await api.fetch_facts("10.73.0.2", deadline_seconds=HANG_SECONDS)
        assert api.problem() == ""
        async with without(pair, 0):
            fault = await query_fault(api, "10.73.0.2")
            assert (fault.kind, fault.step, fault.endpoint) == ("refused", "connect", pair.endpoints[0])
            assert "Connect call failed" in api.problem()
        await wait_until(lambda: answers(api, "10.73.0.2"), "the machine answers")
        assert api.problem() == ""


async def test_a_watch_on_the_endpoint_that_is_cut_ends_and_opens_on_the_other(
    pair: MachineFleet, tmp_path: Path
):
    async with asking(pair, tmp_path) as api:
        for endpoint in (0, 1):
            async with aclosing(api.watch_machine("10.73.0.3", read_deadline_seconds=HANG_SECONDS)) as first:
                assert await anext(first) is not None
                async with without(pair, endpoint):
                    second = api.watch_machine("10.73.0.3", read_deadline_seconds=HANG_SECONDS)
                    assert await anext(second) is not None
                    await second.aclose()


async def test_an_endpoint_that_swallows_everything_costs_a_bounded_time(pair: MachineFleet, tmp_path: Path):
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serve_tcp(swallow) as port:
        hole = f"127.0.0.1:{port}"
        async with asking(pair, tmp_path, hole, connect_seconds=0.3) as api:
            begun = asyncio.get_running_loop().time()
            fault = await query_fault(api, "10.73.0.4", deadline_seconds=60)
            assert asyncio.get_running_loop().time() - begun < 30, "not the deadline of the look"
            assert (fault.kind, fault.step) == ("timeout", "connect")
        async with asking(pair, tmp_path, hole, pair.endpoints[0], connect_seconds=2) as api:
            for i in range(1, 9):
                assert (
                    await api.fetch_facts(f"10.73.0.{i}", deadline_seconds=HANG_SECONDS)
                ).node_name == f"pair-{i}"
        async with asking(pair, tmp_path, hole, connect_seconds=30) as api:
            fault = await query_fault(api, "10.73.0.4", deadline_seconds=0.3)
            assert (fault.kind, fault.step) == ("timeout", "connect")


async def test_an_endpoint_that_does_not_speak_tls_is_told_apart(pair: MachineFleet, tmp_path: Path):
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()

    async with serve_tcp(greet) as port, asking(pair, tmp_path, f"127.0.0.1:{port}") as api:
        fault = await query_fault(api, "10.73.0.4")
    assert fault.kind == "refused"
    assert "TLS handshake failed" in fault.message


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not HTTP/2"),
        (SettingsFrame().serialize() + GoAwayFrame().serialize(), "goes away"),
    ],
    ids=["not HTTP/2", "on its way out"],
)
async def test_an_endpoint_that_ends_each_connection_leaves_its_machines_to_the_others(
    pair: MachineFleet, tmp_path: Path, greeting: bytes, reason: str
):
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await writer.drain()

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.pki.directory / "server.crt", pair.pki.directory / "server.key")
    async with serve_tcp(greet, tls=tls) as port:
        bad = f"127.0.0.1:{port}"
        async with asking(pair, tmp_path, bad) as api:
            fault = await query_fault(api, "10.73.0.4")
            assert fault.kind == "refused"
            assert reason in fault.message
            assert reason in api.problem()
        async with asking(pair, tmp_path, bad, pair.endpoints[0]) as api:
            for i in range(1, 9):
                assert (
                    await api.fetch_facts(f"10.73.0.{i}", deadline_seconds=HANG_SECONDS)
                ).node_name == f"pair-{i}"


async def test_an_endpoint_whose_name_does_not_resolve_is_refused_by_name(pair: MachineFleet, tmp_path: Path):
    async with asking(pair, tmp_path, "talos.invalid") as api:
        fault = await query_fault(api, "10.73.0.4")
    assert fault.kind == "refused"
    assert "talos.invalid:50000" in fault.message


async def test_a_machine_that_is_down_does_not_put_its_endpoint_aside(pair: MachineFleet, tmp_path: Path):
    async with asking(pair, tmp_path) as api:
        await pair.set_faults("pair-5", unavailable=True)
        try:
            for _ in range(3):
                assert (await query_fault(api, "10.73.0.5")).kind == "refused"
            assert api.problem() == ""
            for i in (1, 2, 3, 4, 6, 7, 8):
                await api.fetch_facts(f"10.73.0.{i}", deadline_seconds=HANG_SECONDS)
        finally:
            await pair.set_faults("pair-5")


async def test_a_closed_api_does_not_connect_again(pair: MachineFleet, tmp_path: Path):
    async with asking(pair, tmp_path) as api:
        await api.fetch_facts("10.73.0.8", deadline_seconds=HANG_SECONDS)
        await pair.set_faults("pair-8", hang=True)
        try:
            look = asyncio.create_task(query_fault(api, "10.73.0.8"))
            await pair.count_calls()
            await api.close()
            assert (await look).kind == "refused"
        finally:
            await pair.set_faults("pair-8")
