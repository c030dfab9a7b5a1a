"""`python -m tests.bench.console.page`: speed of the live console's page, and memory of its process.

A real Chromium shows a console process that follows a real nats-server. It prints figures and judges none.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import click

from libs.common.bus.nats.bus import NatsBus
from libs.testbed.child_process import ChildProcess
from libs.testbed.nats_server import NatsServer
from libs.testbed.ports import allocate_port
from libs.testbed.run_directory import open_run_directory
from libs.testbed.service_processes import measure_process_usage
from libs.testbed.service_start import start_service
from tests.bench.results import read_host
from tests.bus_actors import run_during, wait_until
from tests.console.browser.chromium import Browser, Page
from tests.console.console_actors import ConsoleClient
from tests.console.console_fleet import ConsoleFleet

_SIZE: Final = (1360, 860)
_WAIT_SECONDS: Final = 120.0
_CHANGES_PER_SECOND: Final = 10
_TASKS: Final = "disabled-by-default-devtools.timeline"
_FIRST_PAINT: Final = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
# Seconds since 1970 at the first frame whose document has that text.
_WAIT_FOR_TEXT: Final = """new Promise((done) => {
  const isShown = () => document.body.innerText.includes("%s");
  const look = () => (isShown() ? done(Date.now() / 1000) : requestAnimationFrame(look));
  look();
})"""
# The time between frames in ms, while the table is scrolled by a screen in each.
_SCROLL: Final = """(async () => {
  const body = document.querySelector(".table-body"), frames = [];
  let last = await new Promise(requestAnimationFrame);
  for (let count = 0; count < 180; count++) {
    body.scrollTop = (count * body.clientHeight * 0.9) % body.scrollHeight;
    const now = await new Promise(requestAnimationFrame);
    frames.push(now - last);
    last = now;
  }
  return frames;
})()"""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--nodes", default=5000, show_default=True, help="Nodes in the stream.")
@click.option("--runs", default=5, show_default=True, help="Pages that are opened, one after the other.")
def main(nodes: int, runs: int) -> None:
    """Measure first paint, delay of a change, frames while scrolling, and memory of the console."""
    host = read_host()
    click.echo(f"{host.processor}, {host.cores} cores, load {host.load_before}, {nodes} Nodes, {runs} runs")
    asyncio.run(_measure(nodes, runs))


async def _measure(nodes: int, runs: int) -> None:
    async with AsyncExitStack() as stack:
        run_dir = stack.enter_context(open_run_directory("console-page", None))
        server = await stack.enter_async_context(NatsServer.start(run_dir / "nats"))
        bus = await NatsBus.connect((server.url,), service="watcher")
        stack.push_async_callback(bus.close)
        fleet = ConsoleFleet(bus)
        await fleet.start()
        await fleet.fill(nodes)
        console, child = await stack.enter_async_context(_run_console(run_dir, server.url))
        await wait_until(
            lambda: _has_rows(console, nodes), "the console has all Nodes", seconds=_WAIT_SECONDS
        )
        await stack.enter_async_context(run_during(_beat(fleet)))
        browser = await stack.enter_async_context(Browser.start())
        rows = [await _measure_page(browser, console, fleet, number) for number in range(runs)]
        for name in rows[0]:
            values = [row[name] for row in rows]
            click.echo(f"{name}: {statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})")
        click.echo(f"memory of the console, MB: {_read_rss(child) / 1e6:.0f}")
        peak = measure_process_usage(child.pid).peak_rss_bytes
        click.echo(f"memory of the console, peak, MB: {peak / 1e6:.0f}")


@asynccontextmanager
async def _run_console(run_dir: Path, nats_url: str) -> AsyncIterator[tuple[ConsoleClient, ChildProcess]]:
    port = allocate_port()
    arguments = [f"--nats-url={nats_url}", f"--console-port={port}", "--secure-port=0"]
    child = start_service("console", "console", arguments, run_dir, {})
    try:
        async with aiohttp.ClientSession(read_bufsize=2**24) as session:
            yield ConsoleClient(session, port), child
    finally:
        await child.stop()


async def _has_rows(console: ConsoleClient, nodes: int) -> bool:
    try:
        return len(await console.read_rows()) >= nodes
    except aiohttp.ClientConnectionError:
        return False  # it does not listen yet


async def _beat(fleet: ConsoleFleet) -> None:
    while True:
        await fleet.publish_leading()
        await asyncio.sleep(1)


async def _measure_page(
    browser: Browser, console: ConsoleClient, fleet: ConsoleFleet, number: int
) -> dict[str, float]:
    figures: dict[str, float] = {}
    async with browser.open_page() as page:
        await page.resize(*_SIZE)
        for view, shown in (("overview", "svg text"), ("nodes", ".row")):
            await page.open("about:blank")
            begun = time.time()
            await page.open(f"{console.url}/#/{view}")
            await page.wait_for(f"document.querySelector('{shown}') && {_FIRST_PAINT}")
            figures[f"{view}: first paint, ms"] = await page.evaluate(_FIRST_PAINT)
            # At most: it includes the answer of the browser, which is polled.
            figures[f"{view}: with all data, at most ms"] = 1000 * (time.time() - begun)
        figures["change on the bus until it is in the page, ms"] = await _measure_change(page, fleet, number)
        figures |= await _measure_scrolling(page, "scrolling")
        async with run_during(_keep_changing(fleet, number)):
            figures |= await _measure_scrolling(page, "scrolling with 10 changes/s")
    return figures


async def _measure_scrolling(page: Page, what: str) -> dict[str, float]:
    """The longest frame, and the longest task by its CPU, which other load does not prolong."""
    await page.start_trace(_TASKS)
    frames = await page.evaluate(_SCROLL)
    trace = await page.stop_trace()
    mains = {
        (each["pid"], each["tid"])
        for each in trace
        if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"
    }
    tasks = [
        each["tdur"] / 1000
        for each in trace
        if each["name"] == "RunTask" and (each["pid"], each["tid"]) in mains and "tdur" in each
    ]
    return {
        f"{what}: longest frame, ms": max(frames),
        f"{what}: longest task, CPU ms": max(tasks),
    }


async def _measure_change(page: Page, fleet: ConsoleFleet, number: int) -> float:
    name = f"stuck-{number}-measured"
    seen = asyncio.create_task(page.evaluate(_WAIT_FOR_TEXT % name))
    await asyncio.sleep(0)  # the page looks from now on
    published_at = time.time()
    await fleet.block(9500 + number, name, "403", age=86_400 * (number + 1))  # the first row
    return 1000 * (float(await seen) - published_at)


async def _keep_changing(fleet: ConsoleFleet, number: int) -> None:
    changed = 0
    while True:
        await fleet.block(9600 + number, f"stuck-{number}-changing", f"403, attempt {changed}")
        changed += 1
        await asyncio.sleep(1 / _CHANGES_PER_SECOND)


def _read_rss(child: ChildProcess) -> int:
    status = Path(f"/proc/{child.pid}/status").read_text()
    return 1024 * int(status.partition("VmRSS:")[2].split()[0])


if __name__ == "__main__":
    main(prog_name="python -m tests.bench.console.page")
