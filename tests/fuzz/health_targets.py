"""Bytes that anyone in the cluster sends to a health port."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from libs.common.service.health import HealthServer, Readiness
from tests.fuzz.target import Target


def _health_port(data: bytes) -> None:
    with _collect_log_lines() as lines:
        asyncio.run(_send(data))
    assert not lines, lines


@contextmanager
def _collect_log_lines() -> Iterator[list[str]]:
    """Collect what aiohttp logs: a client must not be able to fill the log."""
    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("aiohttp.server")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


async def _send(data: bytes) -> None:
    """The server closes the connection, and afterwards it answers the next client."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    server = HealthServer(Readiness(asyncio.get_running_loop().time), None)
    port = await server.start("127.0.0.1", 0)
    try:
        await _exchange(port, data, patience_seconds=0.01)
        request = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
        answer = await _exchange(port, request, patience_seconds=10)
        assert answer.startswith(b"HTTP/1.1 200 "), answer
    finally:
        await server.stop()
    assert not errors, errors


async def _exchange(port: int, data: bytes, *, patience_seconds: float) -> bytes:
    """Send the bytes and return what the server sent until it closed the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        try:
            async with asyncio.timeout(patience_seconds):
                return await reader.read()
        except TimeoutError:
            writer.write_eof()  # half of a request: the server need not wait for its own timeout
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""  # the server closed the connection before it had read everything
    finally:
        writer.close()


TARGETS: Final = (
    Target(
        name="health-port",
        format="http",
        run=_health_port,
        seeds=lambda: (
            b"GET /readyz?verbose HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n",
            b"POST /healthz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nabc",
        ),
        max_bytes=80 * 1024,
        examples=15,
    ),
)
