"""A flood of connections to the health port of a running process: every liveness probe still succeeds."""

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import pytest

from libs.testbed.child_process import HANG_SECONDS
from tests.bus_actors import wait_until
from tests.integration.processes import Process, a_process

KUBELET = "127.0.0.1"
POD = "127.0.0.2"  # each address of 127.0.0.0/8 is a source of its own
PROBE_SECONDS = 1.0  # a kubelet's default
PROBES = 21
CALLERS = 80
CONNECT_AT_ONCE = 4  # they leave the probe, which runs beside them, processor time

REQUEST = b"GET /livez HTTP/1.1\r\nHost: a\r\n"
SAYS = {
    "never starts TLS": None,
    "never completes the headers": REQUEST + b"X-Slow: ",
    "pipelines requests for metrics": b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 200,
}


TLS = ssl._create_unverified_context()
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int, source: str, tls: ssl.SSLContext | None) -> Streams:
    return await asyncio.open_connection(KUBELET, port, ssl=tls, local_addr=(source, 0))


async def answer_to(says: bytes, streams: Streams) -> bytes:
    """All that the server sends until it closes the connection."""
    reader, writer = streams
    try:
        writer.write(says)
        return await reader.read()
    finally:
        writer.transport.abort()


async def probe(port: int) -> bytes:
    """Status line of /livez, asked for as a kubelet does."""
    async with asyncio.timeout(HANG_SECONDS):
        streams = await connect(port, KUBELET, TLS)
        answer = await answer_to(REQUEST + b"Connection: close\r\n\r\n", streams)
    return answer.partition(b"\r\n")[0]


@asynccontextmanager
async def flood(port: int, sources: list[str], says: bytes | None, *, again: bool) -> AsyncIterator[None]:
    """A caller from each source at once; `again`: each calls again as soon as its connection is closed."""
    connecting = asyncio.Semaphore(CONNECT_AT_ONCE)
    attempts = Counter[str]()

    async def call(source: str) -> None:
        try:
            async with connecting:
                streams = await connect(port, source, None if says is None else TLS)
        finally:
            attempts["made"] += 1
        await answer_to(says or b"", streams)

    async def caller(source: str) -> None:
        while True:
            with contextlib.suppress(OSError):
                await call(source)
            if not again:
                return

    async with asyncio.TaskGroup() as group:
        callers = [group.create_task(caller(source)) for source in sources]
        await wait_until(lambda: attempts["made"] >= len(sources), "all callers have connected")
        yield
        for each in callers:
            each.cancel()


async def assert_probes_succeed(port: int) -> None:
    clock = asyncio.get_running_loop().time
    failed, seconds = list[str](), list[float]()
    for number in range(PROBES):
        began = clock()
        try:
            status = await probe(port)
            if status != b"HTTP/1.1 200 OK":
                failed.append(f"{number}: {status!r}")
        except OSError as error:
            failed.append(f"{number}: {error!r}")
        seconds.append(clock() - began)
    assert not failed, f"{len(failed)} of {PROBES} probes failed"
    # A busy machine delays some for another reason.
    assert median(seconds) < PROBE_SECONDS


@pytest.fixture(scope="module")
async def process(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Process]:
    run_dir = tmp_path_factory.mktemp("flood")
    async with a_process(run_dir, "services.metadata", "--bind-address=127.0.0.1") as running:
        await running.serves()
        yield running


@pytest.mark.parametrize("kind", SAYS)
async def test_probes_succeed_during_a_flood_that_does_not_end(kind: str, process: Process):
    async with flood(process.port, [POD] * CALLERS, SAYS[kind], again=True):
        await assert_probes_succeed(process.port)


async def test_probes_succeed_while_idle_callers_come_from_the_address_of_the_kubelet(process: Process):
    async with flood(process.port, [KUBELET] * CALLERS, SAYS["never starts TLS"], again=False):
        await assert_probes_succeed(process.port)


async def test_probes_succeed_while_each_idle_caller_comes_from_an_address_of_its_own(process: Process):
    sources = [f"127.0.1.{number}" for number in range(1, CALLERS + 1)]
    async with flood(process.port, sources, SAYS["never completes the headers"], again=True):
        await assert_probes_succeed(process.port)


def descriptors(process: Process) -> int:
    return len(list(Path(f"/proc/{process.child.process.pid}/fd").iterdir()))


async def test_a_flood_takes_no_more_file_descriptors_than_the_limit(tmp_path: Path):
    async with a_process(tmp_path, "services.metadata", "--bind-address=127.0.0.1") as process:
        await process.serves()
        before = descriptors(process)
        async with flood(process.port, [POD] * 300, SAYS["never starts TLS"], again=False):
            await assert_probes_succeed(process.port)
            assert descriptors(process) - before <= 70
