"""`python -m libs.testbed.compose.console_port`: forward the published port to the loopback of the console.

Both containers share one network, so the console itself listens on no other address than in a cluster.
"""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from typing import Final

from libs.common.contract.services import CONSOLE_PORT

LISTEN_PORT: Final = CONSOLE_PORT + 1
_CHUNK_BYTES: Final = 1 << 16


async def listen(host: str, port: int, console_port: int) -> asyncio.Server:
    """Forward each connection to that port of the loopback until the server is closed."""
    return await asyncio.start_server(partial(_forward, console_port), host, port)


async def _forward(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        console_reader, console_writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        print(f"console_port: {error.strerror}", flush=True)  # the console starts again
        writer.close()
        return
    await asyncio.gather(_copy(reader, console_writer), _copy(console_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # one of the two is gone: the other connection ends, too
    finally:
        writer.close()


async def main() -> None:
    """Forward until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with await listen("0.0.0.0", LISTEN_PORT, CONSOLE_PORT):  # noqa: S104 - in a container's network
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(main())
