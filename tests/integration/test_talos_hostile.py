"""What a hostile machine or a broken endpoint sends: it ends one look, with a reason, and nothing else."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from h2.settings import SettingCodes

from libs.common.contract.machine import FaultKind
from libs.talos.api import MachineUnavailable, TalosApi, WatchSnapshot
from libs.talos.credentials import CredentialStore
from libs.talos.proto.generated import EventType
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.pki import TalosPki
from tests.integration.scripted_endpoint import (
    HEADERS,
    OK,
    Headers,
    Request,
    Script,
    ScriptedEndpoint,
    scripted_endpoint,
)
from tests.talos_actors import encode_answer, encode_event, query_fault

HOSTILE, HONEST = "10.75.0.1", "10.75.0.2"


@asynccontextmanager
async def asking(
    tmp_path: Path, script: Script, *more_endpoints: str
) -> AsyncIterator[tuple[TalosApi, ScriptedEndpoint]]:
    async with scripted_endpoint(tmp_path / "pki", script) as (endpoint, pki):
        api = an_api(tmp_path, pki, endpoint.address, *more_endpoints)
        try:
            yield api, endpoint
        finally:
            await api.close()


def an_api(tmp_path: Path, pki: TalosPki, *endpoints: str) -> TalosApi:
    config = tmp_path / "config"
    config.write_text(pki.talosconfig(endpoints))
    return TalosApi(CredentialStore([config]), clock=lambda: datetime.now(UTC))


def hostile(misbehave: Script) -> Script:
    """Only the platform metadata of the hostile machine."""

    def script(request: Request) -> None:
        if request.node == HOSTILE and request.asked.type.startswith("PlatformMetadatas"):
            misbehave(request)
        else:
            request.answer_well()

    return script


def raw(data: bytes) -> Script:
    def misbehave(request: Request) -> None:
        request.headers(HEADERS)
        request.data(data)
        request.headers(OK, end=True)

    return misbehave


def announce_four_gigabytes(request: Request) -> None:
    request.headers(HEADERS)
    request.data(b"\0\xff\xff\xff\xff" + b"x" * min(16_000, request.room - 5))


def twice(request: Request) -> None:
    answer = encode_answer(request.resource())
    request.answer(answer, answer)


def ended(headers: Headers) -> Script:
    return lambda request: request.headers(headers, end=True)


def trailed(trailers: Headers) -> Script:
    return lambda request: request.answer(encode_answer(request.resource()), trailers=trailers)


MISBEHAVIOURS: list[tuple[str, Script, FaultKind]] = [
    ("a message of 4 GB is announced", announce_four_gigabytes, "invalid"),
    ("a compressed message", raw(b"\1\0\0\0\3abc"), "invalid"),
    ("a message that ends early", raw(b"\0\0\0\0\x64abc"), "invalid"),
    ("a length that ends early", raw(b"\0\0"), "invalid"),
    ("no message", raw(b""), "invalid"),
    ("two messages", twice, "invalid"),
    ("random bytes", raw(bytes(range(256)) * 50), "invalid"),
    ("no status", trailed([("x", "y")]), "internal"),
    ("a status that is no number", trailed([("grpc-status", "fine")]), "internal"),
    ("an unknown status", trailed([("grpc-status", "4711")]), "internal"),
    ("HTML", ended([(":status", "200"), ("content-type", "text/html")]), "internal"),
    ("no content type", ended([(":status", "200")]), "internal"),
    ("HTTP 404", ended([(":status", "404")]), "internal"),
    ("a header that is not ASCII", trailed([("x-name", "wärbö"), ("grpc-status", "5")]), "not_found"),
    ("a binary header that is not base64", trailed([("x-bin", "wärbö!"), *OK]), "invalid"),
    ("a text of a megabyte", trailed([("grpc-status", "13"), ("grpc-message", "y" * 30_000)]), "internal"),
]


@pytest.mark.parametrize(("name", "misbehave", "kind"), MISBEHAVIOURS)
async def test_a_hostile_machine_gets_a_fault_and_others_on_the_same_connection_notice_nothing(
    tmp_path: Path, name: str, misbehave: Script, kind: FaultKind
):
    async with asking(tmp_path, hostile(misbehave)) as (api, endpoint):
        fault, honest = await asyncio.gather(
            query_fault(api, HOSTILE),
            asyncio.gather(*(api.fetch_facts(HONEST, deadline_seconds=HANG_SECONDS) for _ in range(5))),
        )
        assert (fault.kind, fault.step) == (kind, "PlatformMetadata"), name
        assert len(fault.message) <= 600
        assert len(honest) == 5
        await api.fetch_facts(HONEST, deadline_seconds=HANG_SECONDS)
        assert endpoint.connections == 1


async def test_a_call_carries_its_node_its_deadline_and_the_headers_of_the_trace(tmp_path: Path):
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with scripted_endpoint(tmp_path / "pki", lambda request: request.answer_well()) as (endpoint, pki):
        config = tmp_path / "config"
        config.write_text(pki.talosconfig([endpoint.address]))
        api = TalosApi(
            CredentialStore([config]),
            clock=lambda: datetime.now(UTC),
            trace_headers=lambda: {"traceparent": traceparent},
        )
        await api.fetch_facts(HONEST, deadline_seconds=9)
        await api.close()
        of_machine = [request for request in endpoint.requests if request.node]
        assert len(of_machine) == 4
        for request in of_machine:
            assert request.node == HONEST
            assert request.received["traceparent"] == traceparent
            assert request.received["grpc-timeout"].endswith("m")  # ms that are left of the 9 s
            assert "nodes" not in request.received  # Talos refuses COSI calls that have it


async def test_a_connection_that_goes_away_is_replaced_and_the_call_made_again(tmp_path: Path):
    def script(request: Request) -> None:
        if endpoint.connections == 1:
            request.go_away()
        else:
            request.answer_well()

    async with asking(tmp_path, script) as (api, endpoint):
        facts = await api.fetch_facts(HONEST, deadline_seconds=HANG_SECONDS)
        assert facts.node_name == ""
        assert endpoint.connections == 2


async def test_a_call_that_is_always_reset_is_tried_twice_and_no_more(tmp_path: Path):
    async with asking(tmp_path, hostile(lambda request: request.reset())) as (api, endpoint):
        fault = await query_fault(api, HOSTILE)
        assert fault.kind == "refused"
        assert "connection lost twice" in fault.message
        of_platform = [r for r in endpoint.requests if r.asked.type.startswith("PlatformMetadatas")]
        assert len(of_platform) == 2


async def test_no_more_calls_are_under_way_than_the_endpoint_allows(tmp_path: Path):
    held: list[Request] = []

    def script(request: Request) -> None:
        held.append(request)
        asyncio.get_running_loop().call_later(0.01, lambda: held.pop(0).answer_well())
        most.append(len(held))

    most: list[int] = []
    async with asking(tmp_path, script) as (api, endpoint):
        endpoint.settings = {SettingCodes.MAX_CONCURRENT_STREAMS: 2}
        await api.fetch_facts(HONEST, deadline_seconds=HANG_SECONDS)  # by now the settings are known
        most.clear()
        await asyncio.gather(
            *(api.fetch_facts(f"10.75.2.{i}", deadline_seconds=HANG_SECONDS) for i in range(1, 9))
        )
        assert (max(most), len(most)) == (2, 32)
        assert endpoint.connections == 1


async def test_an_endpoint_that_takes_no_call_is_told_as_such(tmp_path: Path):
    async with asking(tmp_path, lambda request: request.answer_well()) as (api, endpoint):
        endpoint.settings = {SettingCodes.INITIAL_WINDOW_SIZE: 16}
        fault = await query_fault(api, HONEST)
        assert fault.kind == "refused"
        assert "no more than 16 bytes" in fault.message


async def test_an_endpoint_is_told_what_we_take(tmp_path: Path):
    async with asking(tmp_path, lambda request: request.answer_well()) as (api, endpoint):
        await api.fetch_facts(HONEST, deadline_seconds=HANG_SECONDS)
        assert endpoint.told == {
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.INITIAL_WINDOW_SIZE: 131_072,
            SettingCodes.MAX_HEADER_LIST_SIZE: 65_536,
        }


async def test_a_ping_is_answered(tmp_path: Path):
    def script(request: Request) -> None:
        request.ping()
        request.answer_well()

    async with asking(tmp_path, script) as (api, endpoint):
        await api.fetch_facts(HONEST, deadline_seconds=HANG_SECONDS)
        await api.fetch_facts(HONEST, deadline_seconds=HANG_SECONDS)
        assert endpoint.pings_answered >= 4


def refusing(headers: Headers) -> Callable[[Request], None]:
    return lambda request: request.headers(headers, end=True)


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ([(":status", "503")], "refused"),
        (
            [*HEADERS, ("grpc-status", "7"), ("grpc-message", "no request forwarding")],
            "permission",
        ),
    ],
    ids=["a load balancer without backends", "a worker"],
)
async def test_an_endpoint_that_cannot_serve_leaves_the_call_to_the_others(
    tmp_path: Path, headers: Headers, kind: FaultKind
):
    async with scripted_endpoint(tmp_path / "pki", refusing(headers)) as (bad, pki):
        alone = an_api(tmp_path, pki, bad.address)
        assert (await query_fault(alone, HOSTILE)).kind == kind
        await alone.close()
        # The good endpoint has the same certificates.
        well = scripted_endpoint(tmp_path, lambda request: request.answer_well(), pki=pki)
        async with well as (good, _):
            api = an_api(tmp_path, pki, bad.address, good.address)
            for i in range(1, 5):
                await api.fetch_facts(f"10.75.1.{i}", deadline_seconds=HANG_SECONDS)
            await api.close()


async def test_an_errored_event_ends_the_watch(tmp_path: Path):
    def script(request: Request) -> None:
        request.headers(HEADERS)
        send(request, b"")
        if request.asked.id:
            send(request, encode_event(EventType.CREATED, resource=request.resource()))
        else:
            error = "buffer overrun: namespace network capacity 1024"
            send(request, encode_event(EventType.ERRORED, error=error))

    async with (
        asking(tmp_path, script) as (api, _),
        aclosing(api.watch_machine(HOSTILE, read_deadline_seconds=HANG_SECONDS)) as watch,
    ):
        with pytest.raises(MachineUnavailable) as unavailable:
            await asyncio.wait_for(drained(watch), HANG_SECONDS)
        assert (unavailable.value.fault.kind, unavailable.value.fault.step) == ("internal", "AddressStatus")
        assert "buffer overrun" in unavailable.value.fault.message


async def test_a_machine_that_floods_its_watch_is_held_back(tmp_path: Path):
    def script(request: Request) -> None:
        if not request.path.endswith("/Watch"):
            request.answer_well()
            return
        request.headers(HEADERS)
        send(request, b"")
        if not request.asked.id:
            send(request, encode_event(EventType.BOOTSTRAPPED))
        event = encode_event(EventType.CREATED, resource=request.resource(b"x" * 500))
        while request.room > 2_000:
            send(request, event)

    async with (
        asking(tmp_path, script) as (api, _),
        aclosing(api.watch_machine(HOSTILE, read_deadline_seconds=HANG_SECONDS)) as watch,
    ):
        assert isinstance(await anext(watch), WatchSnapshot)
        begun = asyncio.get_running_loop().time()
        for _ in range(30):
            assert await anext(watch) is None
        assert asyncio.get_running_loop().time() - begun > 0.4  # 20 messages a second and stream
        await api.fetch_facts(HONEST, deadline_seconds=HANG_SECONDS)


def send(request: Request, message: bytes) -> None:
    request.data(b"\0" + len(message).to_bytes(4, "big") + message)


async def drained(watch: AsyncGenerator[WatchSnapshot | None, None]) -> None:
    async for _ in watch:
        pass
