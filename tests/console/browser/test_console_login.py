"""The login of an exposed console in a real Chromium."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from libs.testbed.kubelets import KubeletFleet
from libs.testbed.sim_apiserver.server import SimApiServer
from services.console.login.sessions import CHECK_SECONDS, UNCHECKED_SECONDS
from tests.console.browser.axe import find_serious_violations
from tests.console.browser.chromium import Browser, Page
from tests.console.console_logins import ExposedConsole, Viewer, open_viewer, run_exposed_console

pytestmark = pytest.mark.real_servers

PATH = "location.pathname"
LOG_IN = """
  document.querySelector("#token").value = %r;
  document.querySelector("form button").click();
"""


class Opened(NamedTuple):
    """An exposed console, its API server, a user who may open it, and the tab of a browser."""

    api_server: SimApiServer
    console: ExposedConsole
    viewer: Viewer
    page: Page

    async def open(self) -> None:
        """Open the console, whose certificate the browser does not know."""
        await self.page.call("Security.setIgnoreCertificateErrors", ignore=True)
        await self.page.open(f"{self.console.client.url}/")
        await self.page.wait_for("document.querySelector('#token')")

    async def log_in(self, token: str) -> None:
        await self.page.evaluate(LOG_IN % token)


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with Browser.start() as running:
        yield running


@pytest.fixture
async def opened(tmp_path: Path, browser: Browser) -> AsyncIterator[Opened]:
    async with (
        SimApiServer.start(tmp_path / "api-server") as api_server,
        KubeletFleet.start(api_server) as admin,
        open_viewer(api_server, admin, "viewer", tmp_path) as viewer,
        run_exposed_console(api_server, admin, tmp_path) as console,
        browser.open_page() as page,
    ):
        yield Opened(api_server, console, viewer, page)


async def test_a_user_logs_in_and_out(opened: Opened):
    page = opened.page
    await opened.open()
    assert await page.evaluate(PATH) == "/login"
    await opened.log_in("wrong")
    await page.wait_for("document.querySelector('[role=alert]')")
    assert "does not accept" in await page.evaluate("document.querySelector('[role=alert]').textContent")
    await opened.log_in(opened.viewer.token)
    await page.wait_for("document.querySelector('header form button')")
    assert await page.evaluate("document.cookie") == ""
    title = await page.evaluate("document.querySelector('header form button').title")
    assert title == f"Logged in as {opened.viewer.user}"
    await page.evaluate("document.querySelector('header form button').click()")
    await page.wait_for("document.querySelector('#token')")
    assert await opened.console.get("/api/state") == 401


async def test_the_page_leads_to_the_login_when_the_token_is_revoked(opened: Opened):
    await opened.open()
    await opened.log_in(opened.viewer.token)
    await opened.page.wait_for("document.querySelector('header form button')")
    await opened.viewer.revoke_token()
    opened.console.clock.advance(CHECK_SECONDS)
    await opened.page.wait_for("document.querySelector('#token')")
    assert await opened.page.evaluate(PATH) == "/login"


async def test_the_page_says_that_the_api_server_does_not_confirm_its_session(opened: Opened):
    await opened.open()
    await opened.log_in(opened.viewer.token)
    await opened.page.wait_for("document.querySelector('header form button') && document.querySelector('h1')")
    await opened.api_server.stop()
    opened.console.clock.advance(UNCHECKED_SECONDS)
    banner = "document.querySelector('.banner')?.innerText.includes('does not confirm the rights')"
    await opened.page.wait_for(banner)
    await opened.api_server.resume()


async def test_axe_reports_nothing_serious_about_the_login(opened: Opened):
    await opened.open()
    await opened.log_in("wrong")
    await opened.page.wait_for("document.querySelector('[role=alert]')")
    assert await find_serious_violations(opened.page) == {}
