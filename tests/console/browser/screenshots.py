"""`python -m tests.console.browser.screenshots`: write the screenshots of the docs, and more to look at."""

import argparse
import asyncio
import itertools
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from libs.common.bus.delivery import Ack, Disposition, Nak
from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.protocol import Message
from libs.common.contract.services import DURABLES, LABELER
from tests.builders import make_cluster_networks
from tests.bus_actors import run_during
from tests.clocks import ManualClock
from tests.console.browser.chromium import Browser, Page
from tests.console.console_actors import ConsoleClient, run_console
from tests.console.console_fleet import ConsoleFleet

ROOT: Final = Path(__file__).parents[3]
DOCS: Final = ROOT / "docs" / "images"
VIEWS: Final = {
    "overview": "overview",
    "nodes": "nodes",
    "node": "node/metal-0002",
    "stuck": "node/metal-0900",
    "certificates": "certificates",
    "networks": "networks",
    "clouds": "clouds",
    "rules": "rules",
    "history": "history",
}
SIZES: Final = {"desktop": (1280, 820), "phone": (390, 844)}
_HAS_RATES: Final = r"/[1-9][0-9.]*\/s/.test(document.querySelector('svg[role=group]').textContent)"
_STEPS: Final = 24  # of the history


async def take_screenshots(folder: Path, nodes: int, sizes: Iterable[str]) -> None:
    """Write a screenshot of each view, light and dark, for a cluster of that many Nodes."""
    clock = ManualClock()
    bus = MemoryBus(MemoryServer(clock=clock.now))
    fleet = ConsoleFleet(bus, clock.now, clock.advance)
    await fleet.start()
    async with AsyncExitStack() as stack:
        browser = await stack.enter_async_context(Browser.start())
        console = await stack.enter_async_context(run_console(bus, clock=clock))
        for durable in DURABLES:
            handler = handle if durable.service == LABELER.service else acknowledge
            await stack.enter_async_context(run_during(bus.consume(durable, handler, in_flight=8)))
        await fill(fleet, clock, nodes)
        if nodes > 1:
            await stack.enter_async_context(run_during(keep_joining(fleet, clock, nodes)))
            async with browser.open_page() as page:
                await open_view(page, console, "overview")
                await page.wait_for(_HAS_RATES)
        for size in sizes:
            for colours in ("light", "dark"):
                async with browser.open_page() as page:
                    await page.resize(*SIZES[size])
                    await page.set_colours(colours)
                    for name, view in VIEWS.items():
                        await open_view(page, console, view)
                        suffix = "" if size == "desktop" else f"-{size}"
                        path = folder / f"console-{name}-{colours}{suffix}.webp"
                        path.write_bytes(await page.take_screenshot())


async def handle(message: Message) -> Disposition:
    """Handle a message as a service that has nothing to do, and retries one of a few."""
    return Nak(3600.0, "403") if message.subject.endswith("-0398") else Ack()


async def acknowledge(message: Message) -> Disposition:
    """Handle a message as a service that has nothing to do."""
    return Ack()


async def fill(fleet: ConsoleFleet, clock: ManualClock, nodes: int) -> None:
    """Let the Nodes join at a varying pace, while the clock of the console runs ten times as fast."""
    await fleet.publish(make_cluster_networks(stream_id=fleet.stream_id))
    joined = 0
    for step in range(_STEPS):
        share = nodes * (step + 1) ** 2 // _STEPS**2
        while joined < share:
            await fleet.join(joined, age=0.1 + (joined % 17) / 40)
            joined += 1
        await fleet.publish_leading()
        await fleet.pulse()
        clock.advance(10)
        await asyncio.sleep(1.1)
    if nodes > 1:
        await fleet.silence(900, "metal-0900")
        await fleet.block(901, "aws-0901", "writing the Node: 403 Forbidden: denied by a webhook")
        await fleet.request("hcloud-0000", denied="requests 10.9.9.9, which the machine does not have")
        await fleet.report_cloud(0, "hcloud-0000")
        await fleet.report_cloud(5, "hcloud-0005")
        fleet.rest(251, 252)
        fleet.record("metal-0002", 2, "Synced", "Node synced successfully")
        fleet.record("aws-0901", 901, "NodeWriteFailed", "403 Forbidden: denied by a webhook")
        await fleet.pulse("metadata", "labeler")
        for number in range(902, 905):
            await fleet.observe(fleet.make(number, f"openstack-0{number}", 2, ready=False))
    await fleet.publish_leading()


async def keep_joining(fleet: ConsoleFleet, clock: ManualClock, first: int) -> None:
    """Let more Nodes join, so that the pictures show a cluster at work."""
    for number in itertools.count(first):
        await fleet.join(number, age=0.2)
        await fleet.publish_leading()
        await fleet.pulse()
        clock.advance(0.05)
        await asyncio.sleep(0.2)


async def open_view(page: Page, console: ConsoleClient, view: str) -> None:
    """Open a view, and wait until it has its data."""
    await page.open(f"{console.url}/#/{view}")
    await page.wait_for("document.querySelector('h1') && !/Waiting for/.test(document.body.innerText)")
    if view.startswith("node/"):
        await page.wait_for("document.querySelector('.waterfall') || document.querySelector('.empty')")
    await page.evaluate("new Promise((done) => setTimeout(done, 400))")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=DOCS)
    parser.add_argument("--nodes", type=int, default=400)
    parser.add_argument("--sizes", nargs="*", default=["desktop"], choices=list(SIZES))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(take_screenshots(arguments.folder, arguments.nodes, arguments.sizes))
