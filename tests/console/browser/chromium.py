"""A headless Chromium, controlled over the Chrome DevTools Protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from libs.testbed.child_process import HANG_SECONDS, ChildProcess

_POLL_SECONDS: Final = 0.05
_MESSAGE_BYTES: Final = 2**27  # a screenshot of a long page
_PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
_FLAGS: Final = (
    "--headless",
    "--remote-debugging-port=0",
    "--no-first-run",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-component-update",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)


class BrowserUnavailable(RuntimeError):
    """There is no Chromium; the message contains the fix."""


class PageError(RuntimeError):
    """A script of the page or of the test failed."""


class Page:
    """One tab. It records what the page writes to the console as an error, its exceptions, and traces."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.errors: list[str] = []
        self._trace: list[dict[str, Any]] = []
        self._has_trace = asyncio.Event()

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol. Raises PageError."""
        return await self._browser.call(method, parameters, self._session)

    async def open(self, url: str) -> None:
        """Open an address and wait until the document is loaded."""
        await self.call("Page.navigate", url=url)
        await self.wait_for("document.readyState === 'complete'")

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, or of its promise. Raises PageError."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if failure := answer.get("exceptionDetails"):
            raise PageError(_describe_exception(failure))
        return answer["result"].get("value")

    async def wait_for(self, expression: str, seconds: float = HANG_SECONDS) -> Any:
        """Return the value of an expression once it is true. Raises TimeoutError with the last value.

        An element counts as true. Its value is an empty dict.
        """
        until = time.monotonic() + seconds
        while (value := await self.evaluate(expression)) in (None, False, 0, ""):
            if time.monotonic() > until:
                text = await self.evaluate("document.body.innerText.slice(0, 2000)")
                raise TimeoutError(f"{expression} is {value!r}; {self.errors}; the page: {text}")
            await asyncio.sleep(_POLL_SECONDS)
        return value

    async def press(self, key: str) -> None:
        """Press and release a key, such as "Tab", "Enter" or "ArrowDown"."""
        code = {"Tab": 9, "Enter": 13, "ArrowUp": 38, "ArrowDown": 40, "End": 35}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            extra = text if kind == "keyDown" else {}
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **extra
            )

    async def move_pointer(self, x: float, y: float) -> None:
        """Move the pointer to a point of the page."""
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def resize(self, width: int, height: int) -> None:
        """Set the size of the page in CSS pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1.0,
            mobile=width < 600,
        )

    async def set_colours(self, scheme: str) -> None:
        """Prefer "light" or "dark", as the system of a user does."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def start_trace(self, *categories: str) -> None:
        """Trace this and all other pages, until `stop_trace`."""
        self._trace, self._has_trace = [], asyncio.Event()
        await self.call("Tracing.start", traceConfig={"includedCategories": categories})

    async def stop_trace(self) -> list[dict[str, Any]]:
        """Return the events of the trace, in the Trace Event Format."""
        await self.call("Tracing.end")
        async with asyncio.timeout(HANG_SECONDS):
            await self._has_trace.wait()
        return self._trace

    async def take_screenshot(self) -> bytes:
        """Return what the page shows as WebP."""
        answer = await self.call("Page.captureScreenshot", format="webp", quality=85)
        return base64.b64decode(answer["data"])

    def record(self, method: str, parameters: dict[str, Any]) -> None:
        """Record an event of the protocol, if it reports an error, or belongs to a trace."""
        if method == "Runtime.exceptionThrown":
            self.errors.append(_describe_exception(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(each.get("value", each)) for each in parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            entry = parameters["entry"]
            self.errors.append(f"{entry['text']} {entry.get('url', '')}")
        elif method == "Tracing.dataCollected":
            self._trace += parameters["value"]
        elif method == "Tracing.tracingComplete":
            self._has_trace.set()


class Browser:
    """One process with any number of pages."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._pages: dict[str, Page] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, flags: Sequence[str] = ()) -> AsyncIterator[Browser]:
        """Start Chromium and connect to it; stop it at the end. Raises BrowserUnavailable."""
        with tempfile.TemporaryDirectory(prefix="talos-ccm-browser-", ignore_cleanup_errors=True) as name:
            run_dir = Path(name)
            # In a container, root has no user namespaces for the sandbox. The pages are our own.
            sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
            profile = run_dir / "profile"
            argv = [find_browser(), *_FLAGS, *sandbox, *flags, f"--user-data-dir={profile}", "about:blank"]
            child = ChildProcess.start("chromium", argv, run_dir)
            try:
                url = await _wait_for_address(profile / "DevToolsActivePort", child)
                async with (
                    aiohttp.ClientSession() as session,
                    session.ws_connect(url, max_msg_size=_MESSAGE_BYTES) as socket,
                ):
                    browser = cls(socket)
                    reading = asyncio.create_task(browser._read())
                    try:
                        yield browser
                    finally:
                        reading.cancel()
                        await asyncio.wait([reading])
            finally:
                await child.kill()

    @contextlib.asynccontextmanager
    async def open_page(self) -> AsyncIterator[Page]:
        """Open a page with cookies and storage of its own; close it at the end."""
        context = (await self.call("Target.createBrowserContext", {}))["browserContextId"]
        target = await self.call("Target.createTarget", {"url": "about:blank", "browserContextId": context})
        attach = {"targetId": target["targetId"], "flatten": True}
        session = (await self.call("Target.attachToTarget", attach))["sessionId"]
        page = self._pages[session] = Page(self, session)
        try:
            for domain in ("Page", "Runtime", "Log", "Network"):
                await page.call(f"{domain}.enable")
            yield page
        finally:
            del self._pages[session]
            await self.call("Target.disposeBrowserContext", {"browserContextId": context})

    async def call(self, method: str, parameters: dict[str, Any], session: str = "") -> Any:
        """Call a method of the protocol and return its result. Raises PageError."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_str(json.dumps(message | ({"sessionId": session} if session else {})))
        async with asyncio.timeout(HANG_SECONDS):
            return await answer

    async def _read(self) -> None:
        async for frame in self._socket:
            message = json.loads(frame.data)
            if "id" in message:
                self._settle(message)
            elif page := self._pages.get(message.get("sessionId", "")):
                page.record(message["method"], message["params"])

    def _settle(self, message: dict[str, Any]) -> None:
        answer = self._waiting.pop(message["id"])
        if answer.done():
            return
        if error := message.get("error"):
            answer.set_exception(PageError(error["message"]))
        else:
            answer.set_result(message["result"])


def find_browser() -> str:
    """Return the path of Chromium. Raises BrowserUnavailable."""
    named = os.environ.get("CHROMIUM")
    for program in (named,) if named else _PROGRAMS:
        if found := shutil.which(program):
            return found
    fix = "install Debian's package chromium (make browser), or name one: CHROMIUM=/path/to/chromium"
    raise BrowserUnavailable(f"Chromium is missing: {fix}")


def install_browser() -> None:
    """Install Debian's package where no Chromium is found. Raises BrowserUnavailable."""
    try:
        find_browser()
    except BrowserUnavailable:
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise
        install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "chromium"]
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "--quiet"], install):
            subprocess.run(command, check=True, stdout=sys.stderr, env=environment)


async def _wait_for_address(file: Path, child: ChildProcess) -> str:
    """Return the address of the protocol, which Chromium writes to a file. Raises BrowserUnavailable."""
    until = time.monotonic() + HANG_SECONDS
    while time.monotonic() < until:
        lines = _read_lines(file)
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        if not child.is_running:
            raise BrowserUnavailable(f"Chromium ended:\n{child.tail()}")
        await asyncio.sleep(_POLL_SECONDS)
    raise BrowserUnavailable(f"Chromium has not started within {HANG_SECONDS:.0f} s:\n{child.tail()}")


def _read_lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _describe_exception(details: dict[str, Any]) -> str:
    description = details.get("exception", {}).get("description", "")
    return description or str(details.get("text", details))


if __name__ == "__main__":
    install_browser()
