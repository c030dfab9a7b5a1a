"""The page of the console in a real Chromium, with a thousand Nodes: what it shows, and how it behaves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import pytest

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from tests.bus_actors import run_during, wait_until
from tests.console.browser.axe import find_serious_violations
from tests.console.browser.chromium import Browser, Page
from tests.console.console_actors import ConsoleClient, run_console
from tests.console.console_fleet import HOSTILE, ConsoleFleet

pytestmark = pytest.mark.real_servers

COUNT = 1000
VIEWS = (
    "overview",
    "nodes",
    "node/stuck-hostile",
    "node/aws-0001",
    "certificates",
    "networks",
    "clouds",
    "rules",
    "history",
)
SIZES = {"desktop": (1360, 860), "phone": (390, 844)}
# The names of all rows that the table shows, top to bottom, while it is scrolled.
READ_TABLE = """(async () => {
  const body = document.querySelector(".table-body"), seen = new Set();
  for (let top = 0; ; top += body.clientHeight * 0.9) {
    body.scrollTop = top;
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    for (const name of document.querySelectorAll(".row a.name")) seen.add(name.textContent);
    if (top > body.scrollHeight) return [...seen];
  }
})()"""
# The number of rows in the page, after the table was scrolled to a share of its height.
COUNT_ROWS = """(async () => {
  const body = document.querySelector(".table-body");
  body.scrollTop = %s * body.scrollHeight;
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return document.querySelectorAll(".row").length;
})()"""


class Opened(NamedTuple):
    """A console with a fleet, and a browser."""

    fleet: ConsoleFleet
    console: ConsoleClient
    browser: Browser

    async def open(self, page: Page, view: str, size: str = "desktop") -> None:
        """Open a view, with data."""
        await page.resize(*SIZES[size])
        await page.open(f"{self.console.url}/#/{view}")
        await page.wait_for("document.querySelector('h1') && !/Waiting for/.test(document.body.innerText)")


@pytest.fixture(scope="module")
async def opened() -> AsyncIterator[Opened]:
    async with AsyncExitStack() as stack:
        browser = await stack.enter_async_context(Browser.start())
        bus = MemoryBus(MemoryServer())
        fleet = ConsoleFleet(bus)
        await fleet.start()
        console = await stack.enter_async_context(run_console(bus))
        await fleet.fill(COUNT)
        await wait_until(lambda: _has_all(console), "the console has all Nodes")
        await stack.enter_async_context(keep_leading(fleet))
        yield Opened(fleet, console, browser)


async def _has_all(console: ConsoleClient) -> bool:
    return len(await console.read_rows()) == COUNT + 3


@asynccontextmanager
async def keep_leading(fleet: ConsoleFleet) -> AsyncIterator[None]:
    """A leader whose heartbeat goes on during the block."""

    async def beat() -> None:
        while True:
            await fleet.publish_leading()
            await asyncio.sleep(1)

    async with run_during(beat()):
        yield


@pytest.fixture
async def page(opened: Opened) -> AsyncIterator[Page]:
    async with opened.browser.open_page() as page:
        yield page
        assert page.errors == []


async def test_the_table_shows_every_node_and_stuck_ones_first(opened: Opened, page: Page):
    await opened.open(page, "nodes?q=zone-3")
    names = await page.evaluate(READ_TABLE)
    rows = await opened.console.read_rows()
    assert set(names) == {name for name, row in rows.items() if row["zone"] == "zone-3"}
    await opened.open(page, "nodes")
    rowcount = await page.evaluate("document.querySelector('[role=table]').getAttribute('aria-rowcount')")
    assert int(rowcount) == COUNT + 4
    shown = await page.evaluate(
        "[...document.querySelectorAll('.row a.name')].map((each) => each.textContent)"
    )
    assert shown[:3] == ["stuck-silent", "stuck-hostile", "stuck-write"]
    assert len(shown) < 100, "only the visible rows are in the document"


async def test_each_block_has_its_node_or_is_in_quarantine_or_free(opened: Opened, page: Page):
    await opened.open(page, "networks")
    squares = "[...document.querySelectorAll('.square')].map((each) => each.title)"
    titles = await page.evaluate(squares)
    assert (len(titles), titles[3], titles[250:]) == (256, "10.244.3.0/24 openstack-0003", [""] * 6)
    assert "Blocks in quarantine, which no ipam reports" in await page.evaluate("document.body.innerText")
    opened.fleet.rest(251, 253)
    await opened.fleet.pulse()
    text = await page.wait_for(
        "document.querySelector('main').innerText.includes('2 in quarantine') && document.body.innerText"
    )
    assert "250 of 256 belong to Nodes, 2 in quarantine" in text
    assert "10.244.253.0/24 until " in text
    assert "Its Node metal-0253 is gone since " in text
    titles = await page.evaluate(squares)
    assert titles[251].startswith("10.244.251.0/24 in quarantine until ")
    assert (titles[250], titles[252], titles[254:]) == ("", "", ["", ""])


async def test_clouds_are_shown_with_their_balancers_and_the_instances_of_nodes(opened: Opened, page: Page):
    await opened.open(page, "clouds")
    text = await page.evaluate("document.querySelector('main').innerText")
    for words in ("prod", "The cloud answers", "1 running, 1 off", "shop/web ready", "203.0.113.7"):
        assert words in text
    assert "The project has <img src=x" in text
    await opened.open(page, "nodes?q=hcloud-000&sort=instance")
    cells = "[...document.querySelectorAll('.row .at-instance')].map((each) => each.innerText)"
    assert (await page.evaluate(cells))[-2:] == ["exists", "off"]
    await opened.open(page, "node/hcloud-0005")
    facts = await page.evaluate("document.querySelector('.facts').innerText")
    assert "off, account prod: talos://" in facts
    assert "Network 4711 routes 10.244.0.0/24 to this Node" in facts


@pytest.mark.parametrize("size", SIZES)
async def test_axe_reports_nothing_serious(opened: Opened, page: Page, size: str):
    serious: dict[str, list[str]] = {}
    for view in VIEWS:
        await opened.open(page, view, size)
        if view.startswith("node/"):
            await page.wait_for("document.querySelector('.waterfall')")
        found = await find_serious_violations(page)
        serious |= {f"{view}: {rule}": elements for rule, elements in found.items()}
    assert serious == {}


async def test_no_view_is_wider_than_a_phone(opened: Opened, page: Page):
    for view in VIEWS:
        await opened.open(page, view, "phone")
        wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, view


async def test_names_and_messages_are_text_and_never_markup(opened: Opened, page: Page):
    for view in VIEWS:
        await opened.open(page, view)
        if view == "node/stuck-hostile":
            await page.wait_for("document.body.innerText.includes('<img src=x onerror')")
        assert (
            await page.evaluate("document.querySelectorAll('main img, main script, main iframe').length") == 0
        )
        assert await page.evaluate("document.title") == "Talos CCM console"


async def test_search_filter_and_sort_are_in_the_address(opened: Opened, page: Page):
    await opened.open(page, "nodes?q=metal+zone-3&sort=name")
    await page.wait_for("/^[0-9,]+ of 1,003 Nodes$/.test(document.querySelector('.summary').innerText)")
    names = await page.evaluate(
        "[...document.querySelectorAll('.row a.name')].map((each) => each.textContent)"
    )
    assert names == sorted(names)
    assert all(name.startswith("metal-") for name in names)
    await page.evaluate(
        "[...document.querySelectorAll('.chip')].find((each) => /Stuck/.test(each.innerText)).click()"
    )
    await page.wait_for("document.body.innerText.includes('No Node matches')")
    assert await page.evaluate("location.hash") == "#/nodes?q=metal+zone-3&sort=name&state=stuck"


async def test_an_edge_shows_the_errors_of_its_service_and_details_are_below(opened: Opened, page: Page):
    await opened.fleet.pulse()
    await opened.open(page, "overview")
    await opened.fleet.pulse("metadata", "labeler")
    await page.wait_for(
        "[...document.querySelectorAll('text.fill-bad')].map((each) => each.textContent).join()"
        " === '1 error,6 errors,4 errors'"
    )
    text = await page.evaluate("document.querySelector('main').innerText")
    assert "Errors in the last five minutes: failed Talos calls 6, failed publishes 1" in text
    label = await page.evaluate("document.querySelector('a[aria-label^=labeler]').getAttribute('aria-label')")
    assert "2 processes" in label


async def test_the_overview_lists_a_blocked_load_balancer_with_a_link_to_the_clouds(
    opened: Opened, page: Page
):
    await opened.open(page, "overview")
    links = "[...document.querySelectorAll('main li a[href=\"#/clouds\"]')].map((each) => each.innerText)"
    await page.wait_for(f"{links}.includes('Load balancer of shop/api')")
    assert "Load balancer of shop/web" not in await page.evaluate(links)


async def test_a_stuck_node_shows_its_cause_its_fix_and_its_hops(opened: Opened, page: Page):
    await opened.open(page, "node/stuck-silent")
    text = await page.wait_for("document.querySelector('.finding') && document.body.innerText")
    assert "Its machine does not answer the Talos API: connect: no answer within 5 s." in text
    assert "talosctl -n 10.0.36.3 version" in text
    assert "attempt 7" in text
    assert "talos-ccm explain node stuck-silent" in text


async def test_a_node_shows_the_events_that_our_services_have_recorded(opened: Opened, page: Page):
    await opened.open(page, "node/stuck-write")
    await page.wait_for("document.body.innerText.includes('No Event since then')")
    opened.fleet.record("stuck-write", 9001, "NodeWriteFailed", f"403 Forbidden {HOSTILE}")
    opened.fleet.record("stuck-write", 9001, "CIDRNotAvailable", "no free block", service="ipam")
    await opened.fleet.pulse()
    text = await page.wait_for(
        "document.querySelectorAll('.events li').length === 2 && document.querySelector('.events').innerText"
    )
    assert f"403 Forbidden {HOSTILE}" in text
    assert "NodeWriteFailed cloud-node-controller, " in text
    assert "no free block" in text
    body = await page.evaluate("document.body.innerText")
    assert "recorded by our services since " in body
    assert "kubectl get events --field-selector involvedObject.name=stuck-write" in body


async def test_rows_can_be_reached_and_opened_with_the_keyboard(opened: Opened, page: Page):
    await opened.open(page, "nodes?sort=name")
    await page.evaluate("document.querySelector('.row[tabindex=\"0\"]').focus()")
    for index in range(1, 4):
        await page.press("ArrowDown")
        await page.wait_for(f"document.activeElement.dataset.index === '{index}'")
    name = await page.evaluate("document.activeElement.querySelector('.name').textContent")
    await page.press("Enter")
    await page.wait_for(f"location.hash === '#/node/{name}'")


async def test_no_row_moves_under_the_pointer_and_pause_keeps_the_table(opened: Opened, page: Page):
    await opened.open(page, "nodes")
    first = await page.evaluate("document.querySelector('.row a.name').textContent")
    await page.move_pointer(600, 500)
    await opened.fleet.block(9100, "stuck-later", "403", age=5)
    await page.wait_for("/of 1,004 Nodes/.test(document.querySelector('.summary').innerText)")
    assert await page.evaluate("document.querySelector('.row a.name').textContent") == first
    await page.move_pointer(600, 20)
    await page.wait_for("document.querySelector('.row a.name').textContent === 'stuck-later'")
    await page.evaluate(
        "[...document.querySelectorAll('button')].find((each) => each.innerText === 'Pause').click()"
    )
    node = opened.fleet.make(9100, "stuck-later", 600, ready=False)
    await opened.fleet.publish_node_gone(node)
    await page.wait_for("document.querySelector('.chip').innerText.includes('1,003')")
    assert "1,004" in await page.evaluate("document.querySelector('.summary').innerText")
    assert await page.evaluate("document.querySelector('.row a.name').textContent") == "stuck-later"


async def test_of_1000_nodes_only_those_in_view_are_in_the_page(opened: Opened, page: Page):
    """A browser lays out a few dozen rows in any frame, wherever the table is scrolled to."""
    await opened.open(page, "nodes")
    for share in (0.0, 0.5, 1.0):
        count = await page.evaluate(COUNT_ROWS % share)
        assert 10 < count < 100


async def test_a_restarted_console_and_stale_data_need_no_reload(opened: Opened):
    bus = MemoryBus(MemoryServer())
    fleet = ConsoleFleet(bus)
    await fleet.start()
    await fleet.join(1)
    async with opened.browser.open_page() as page:
        async with run_console(bus) as console:
            port = int(console.url.rpartition(":")[2])
            await page.resize(1360, 860)
            await page.open(f"{console.url}/#/nodes")
            await page.wait_for("document.querySelector('.row')")
            await page.evaluate("window.isSamePage = true")
        await page.wait_for("document.querySelector('.banner')?.innerText.includes('does not answer')")
        assert await page.evaluate("document.querySelectorAll('.row').length") == 1, "the last state stays"
        assert await find_serious_violations(page) == {}
        await fleet.join(2)
        async with run_console(bus, port=port):
            await page.wait_for("document.querySelectorAll('.row').length === 2")
            await page.wait_for("!document.querySelector('.banner')")
        assert await page.evaluate("window.isSamePage")
