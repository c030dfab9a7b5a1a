"""What an exposed console refuses, and what it does without its API server."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.sim_apiserver.server import SimApiServer
from services.console.login.sessions import CHECK_SECONDS, LIFETIME_SECONDS, UNCHECKED_SECONDS
from tests.bus_actors import wait_until
from tests.console.console_logins import (
    HOST,
    ORIGIN,
    ExposedConsole,
    Viewer,
    open_viewer,
    run_exposed_console,
)

COOKIE = "__Host-talos-ccm-console"


class Setting(NamedTuple):
    """A console, its API server, and a user who may open it."""

    console: ExposedConsole
    api_server: SimApiServer
    viewer: Viewer


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    async with (
        SimApiServer.start(tmp_path / "api-server") as api_server,
        KubeletFleet.start(api_server) as admin,
        open_viewer(api_server, admin, "viewer", tmp_path) as viewer,
        run_exposed_console(api_server, admin, tmp_path) as console,
    ):
        yield Setting(console, api_server, viewer)


@asynccontextmanager
async def outage(api_server: SimApiServer) -> AsyncIterator[None]:
    """Stop the API server meanwhile."""
    await api_server.stop()
    yield
    await api_server.resume()


@pytest.mark.parametrize("path", ["/api/state", "/api/events", "/api/settings", "/api/nodes/web-1"])
async def test_data_needs_a_session(setting: Setting, path: str):
    for cookie in ("", f"{COOKIE}=", f"{COOKIE}=guessed", f"other={setting.viewer.token}"):
        assert await setting.console.get(path, cookie) == 401
    assert await setting.console.get(path, Authorization=f"Bearer {setting.viewer.token}") == 401


@pytest.mark.parametrize(
    ("path", "status"), [("/", 303), ("/app.js", 303), ("/login", 200), ("/app.css", 200)]
)
async def test_without_a_session_there_is_only_the_login(setting: Setting, path: str, status: int):
    assert await setting.console.get(path) == status


@pytest.mark.parametrize("host", ["evil.example", "10.244.0.9:10467", "console.example.evil.example"])
async def test_a_foreign_host_is_refused_with_a_session_too(setting: Setting, host: str):
    _, cookie = await setting.console.log_in(setting.viewer.token)
    for path in ("/", "/login", "/api/state"):
        assert await setting.console.get(path, cookie, Host=host) == 403
    status, _, _ = await setting.console.post("/login", f"token={setting.viewer.token}", Host=host)
    assert status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"{ORIGIN}:8443"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_other_sites_can_neither_log_in_nor_out(setting: Setting, headers: dict[str, str]):
    _, cookie = await setting.console.log_in(setting.viewer.token)
    for path in ("/login", "/logout"):
        status, _, set_cookie = await setting.console.post(
            path, f"token={setting.viewer.token}", Cookie=cookie, **headers
        )
        assert (status, set_cookie) == (403, "")
    assert await setting.console.get("/api/state", cookie) == 200


async def test_the_cookie_is_out_of_reach_for_scripts_other_sites_and_plain_http(setting: Setting):
    _, _, cookie = await setting.console.post("/login", f"token={setting.viewer.token}")
    name, *attributes = cookie.split("; ")
    assert name.startswith("__Host-")
    assert set(attributes) == {"HttpOnly", "Secure", "SameSite=Strict", "Path=/"}
    assert setting.viewer.token not in cookie


async def test_each_login_has_a_new_session_and_ends_the_former_one(setting: Setting):
    status, _, _ = await setting.console.post(
        "/login", f"token={setting.viewer.token}", Cookie=f"{COOKIE}=chosen-by-an-attacker"
    )
    assert status == 303
    assert await setting.console.get("/api/state", f"{COOKIE}=chosen-by-an-attacker") == 401
    _, first = await setting.console.log_in(setting.viewer.token)
    _, _, second = await setting.console.post("/login", f"token={setting.viewer.token}", Cookie=first)
    assert await setting.console.get("/api/state", first) == 401
    assert await setting.console.get("/api/state", second.partition(";")[0]) == 200


async def test_a_token_in_the_address_is_ignored(setting: Setting):
    status, text, cookie = await setting.console.post(f"/login?token={setting.viewer.token}")
    assert (status, cookie) == (400, "")
    assert setting.viewer.token not in text


async def test_the_page_and_the_log_never_contain_a_token(setting: Setting, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    await setting.console.log_in(setting.viewer.token)
    status, text, _ = await setting.console.post("/login", "token=mistyped-token")
    async with outage(setting.api_server):
        await setting.console.log_in(setting.viewer.token)
    assert status == 403
    recorded = text + "".join(f"{each.getMessage()} {vars(each)}" for each in caplog.records)
    assert "cannot check the token" in recorded
    assert "mistyped-token" not in recorded
    assert setting.viewer.token not in recorded


async def test_a_session_ends_with_its_lifetime(setting: Setting):
    _, cookie = await setting.console.log_in(setting.viewer.token)
    async with setting.console.follow(cookie) as stream:
        setting.console.clock.advance(LIFETIME_SECONDS)
        await asyncio.wait_for(stream, HANG_SECONDS)
    assert await setting.console.get("/api/state", cookie) == 401


async def test_without_an_api_server_a_login_is_an_error_and_no_denial(setting: Setting):
    async with outage(setting.api_server):
        status, problem = await setting.console.log_in(setting.viewer.token)
    assert status == 503
    assert "cannot check the token now" in problem
    assert "127.0.0.1" not in problem, "the log has the reason"


async def test_a_session_outlives_a_restart_of_the_api_server_and_shows_nothing_in_a_long_outage(
    setting: Setting,
):
    console = setting.console
    _, cookie = await console.log_in(setting.viewer.token)
    async with outage(setting.api_server):
        seen = len(console.reviews)
        console.clock.advance(CHECK_SECONDS)
        await wait_until(lambda: len(console.reviews) > seen, "a check without an answer")
        assert await console.get("/api/state", cookie) == 200
        async with console.follow(cookie) as stream:
            console.clock.advance(UNCHECKED_SECONDS)
            await asyncio.wait_for(stream, HANG_SECONDS)
        assert await console.get("/api/state", cookie) == 503

    async def is_back() -> bool:
        console.clock.advance(CHECK_SECONDS)
        return await console.get("/api/state", cookie) == 200

    await wait_until(is_back, "the session is valid again")


async def test_open_pages_leave_connections_for_the_login(setting: Setting):
    console = setting.console
    _, cookie = await console.log_in(setting.viewer.token)
    async with AsyncExitStack() as pages:
        first, *_ = [await pages.enter_async_context(console.follow(cookie)) for _ in range(64)]
        assert await console.get("/api/events", cookie) == 503
        assert await console.get("/login") == 200
        assert not first.done()

    async def is_free() -> bool:
        return await console.get("/api/events", cookie) == 200

    await wait_until(is_free, "the server notices that a page is closed")


async def test_a_logout_needs_no_api_server(setting: Setting):
    console = setting.console
    _, cookie = await console.log_in(setting.viewer.token)
    async with outage(setting.api_server):
        console.clock.advance(UNCHECKED_SECONDS)
        assert await console.get("/api/state", cookie) == 503
        assert (await console.post("/logout", Cookie=cookie))[0] == 303
        assert await console.get("/api/state", cookie) == 401


async def test_failed_logins_do_not_load_the_api_server(setting: Setting):
    before = len(setting.console.reviews)
    statuses = [(await setting.console.log_in(f"wrong-{number}"))[0] for number in range(20)]
    assert statuses == [403] * 10 + [429] * 10
    assert len(setting.console.reviews) - before == 10
    assert (await setting.console.log_in(""))[0] == 400
    setting.console.clock.advance(60)
    assert (await setting.console.log_in(setting.viewer.token))[0] == 303


@pytest.mark.parametrize(
    ("body", "headers", "statuses"),
    [
        ("token=" + "x" * 40_000, {}, {413}),
        ("token=" + "x" * 1_000_000, {}, {413, 0}),
        ("no gzip", {"Content-Encoding": "gzip"}, {400}),
        ("{}", {"Content-Type": "application/json"}, {415}),
        ("--b", {"Content-Type": "multipart/form-data; boundary=b"}, {415}),
        ("token=a%0d%0aSet-Cookie:b", {}, {400}),
        ("token=%ff%fe", {}, {400}),
        ("token=%3Cscript%3E", {}, {403}),
    ],
    ids=["large", "huge", "encoding", "json", "multipart", "lines", "bytes", "markup"],
)
async def test_a_hostile_form_is_refused(
    setting: Setting, body: str, headers: dict[str, str], statuses: set[int]
):
    try:
        status, text, cookie = await setting.console.post("/login", body, **headers)
    except aiohttp.ClientError:  # the console closed the connection
        status, text, cookie = 0, "", ""
    assert status in statuses
    assert cookie == ""
    assert "<script" not in text


async def test_the_name_of_a_user_is_text_in_the_page(setting: Setting):
    token = setting.api_server.issue_token("<img src=x onerror=alert(1)>")
    status, text, _ = await setting.console.post("/login", f"token={token}")
    assert status == 403
    assert "&lt;img src=x onerror=alert(1)&gt; may not list nodes." in text
    assert "<img" not in text


async def test_a_form_that_never_arrives_ends_the_connection(setting: Setting, tmp_path: Path):
    port = int(setting.console.client.url.rpartition(":")[2])
    context = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    head = (f"Host: {HOST}", f"Origin: {ORIGIN}", "Content-Length: 100")
    form = "Content-Type: application/x-www-form-urlencoded"
    writer.write("\r\n".join(("POST /login HTTP/1.1", *head, form, "", "token=")).encode())
    answer = await asyncio.wait_for(reader.read(), HANG_SECONDS)
    assert answer.startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_every_response_forbids_frames_and_inline_scripts(setting: Setting):
    _, cookie = await setting.console.log_in(setting.viewer.token)
    for path in ("/", "/login", "/api/state", "/missing"):
        _, _, headers = await setting.console.client.get(path, Host=HOST, Cookie=cookie)
        policy = headers["Content-Security-Policy"]
        assert {"frame-ancestors 'none'", "script-src 'self'", "form-action 'self'"} <= set(
            policy.split("; ")
        )
        assert headers["X-Frame-Options"] == "DENY"


async def test_a_method_that_the_console_does_not_have_is_refused(setting: Setting):
    _, cookie = await setting.console.log_in(setting.viewer.token)
    for method in ("OPTIONS", "PUT", "DELETE", "PATCH"):
        async with setting.console.client.session.request(
            method, f"{setting.console.client.url}/api/state", headers={"Host": HOST, "Cookie": cookie}
        ) as response:
            assert response.status in (403, 405)
            assert not [name for name in response.headers if name.lower().startswith("access-control-")]
