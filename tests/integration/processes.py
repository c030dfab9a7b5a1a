"""Our real processes and their HTTP answers."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import aiohttp

from libs.testbed.child_process import HANG_SECONDS, ChildProcess
from libs.testbed.ports import allocate_port
from libs.testbed.service_start import start_interpreter, start_program
from tests.bus_actors import wait_until

AT_ONCE_SECONDS = 20.0  # an end without delay, on a busy machine; Kubernetes grants 30 s
NOWHERE = "nats://127.0.0.1:1"  # nothing may listen there


class Process(NamedTuple):
    """A running process and the port of its health server."""

    child: ChildProcess
    port: int
    session: aiohttp.ClientSession

    async def get(self, path: str, *, scheme: str = "https", **headers: str) -> tuple[int, str, str]:
        """Status, content type and text of an answer."""
        url = f"{scheme}://127.0.0.1:{self.port}{path}"
        async with self.session.get(url, ssl=False, headers=headers) as answer:
            return answer.status, answer.headers["Content-Type"], await answer.text()

    async def serves(self, scheme: str = "https") -> "Process":
        """Return when health is served."""

        async def answers() -> bool:
            assert self.child.is_running, self.child.tail()
            try:
                return (await self.get("/livez", scheme=scheme))[0] == 200
            except aiohttp.ClientConnectorError:
                return False

        await wait_until(answers, "health is served")
        return self

    async def readyz(self) -> str:
        """The verbose report."""
        return (await self.get("/readyz?verbose"))[2]

    def log_text(self) -> str:
        """Its log so far."""
        return self.child.log.read_text()

    async def said(self, words: str) -> None:
        """Return once its log has these words."""
        await wait_until(lambda: words in self.log_text(), f"{words!r} in the log")

    async def ends(self, seconds: float = HANG_SECONDS) -> int:
        """Its exit status."""
        async with asyncio.timeout(seconds):
            return await self.child.wait()

    async def ends_after_sigterm(self) -> tuple[int, float]:
        """Its exit status, and how many seconds it took."""
        began = time.monotonic()
        self.child.process.terminate()
        return await self.ends(), time.monotonic() - began


@asynccontextmanager
async def a_process(
    run_dir: Path,
    module: str,
    *arguments: str,
    start: Callable[..., ChildProcess] = start_program,
    **environment: str,
) -> AsyncIterator[Process]:
    """`python -m module arguments` with a port of its own, by default without a NATS; forked if it can be."""
    port = allocate_port()
    run_dir = Path(tempfile.mkdtemp(dir=run_dir))  # a log of its own
    clean = {"NATS_URL": NOWHERE, "KUBECONFIG": "", "TALOSCONFIG": "", "OTEL_EXPORTER_OTLP_ENDPOINT": ""}
    child = start("process", module, [*arguments, f"--secure-port={port}"], run_dir, env=clean | environment)
    try:
        async with aiohttp.ClientSession() as session:
            yield Process(child, port, session)
    finally:
        await child.kill()


a_new_interpreter = partial(a_process, start=start_interpreter)
