"""Serves /healthz, /livez, /readyz and /metrics on the event loop of the services, so it hangs with them."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from libs.common.client_tls import without_system_authorities
from libs.common.contract.ip_addresses import parse_ip
from libs.common.observability import metrics

with without_system_authorities():  # as in web_listener
    from aiohttp import web

log = logging.getLogger(__name__)

ReadinessCheck = Callable[[], tuple[str, ...]]

# Reasons name Nodes, addresses and servers, and every caller may ask. kube-apiserver also withholds its own.
_WITHHELD: Final = "reason withheld; callers on the loopback address see it"
_CHECK_INTERVAL_SECONDS: Final = 0.1
_UNREADY_LOG_SECONDS: Final = 5.0  # the adapter itself logs a shorter reconnect


class Readiness:
    """The readiness checks of a process, by name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Create it without checks, not ready. `clock` is monotonic, in seconds."""
        self._clock = clock
        self._changed_at = clock()
        self._checks: dict[str, ReadinessCheck] = {"process": lambda: ("still starting",)}

    def add_check(self, name: str, problems: ReadinessCheck) -> None:
        """Add a check; the process is ready only if it has no problems."""
        self._checks[name] = problems

    def mark_started(self) -> None:
        """Record that the process has started and all checks have been added."""
        self._checks["process"] = lambda: ()

    def mark_stopping(self) -> None:
        """Record that the process is ending: it is not ready, whatever its checks return."""
        self._checks["process"] = lambda: ("ending",)

    def problems(self) -> Mapping[str, tuple[str, ...]]:
        """Return the problems of each check; checks without problems are included."""
        return {name: check() for name, check in self._checks.items()}

    async def log_changes(self) -> None:
        """Log when the process becomes ready, and when it is not ready for 5 s. Runs until cancelled."""
        ready, is_logged = False, False
        while True:
            problems = self.problems()
            seconds = round(self._clock() - self._changed_at, 2)
            if ready is any(problems.values()):
                ready, is_logged, self._changed_at = not ready, False, self._clock()
                if ready:
                    log.info("ready", extra={"after_seconds": seconds})
            elif not ready and not is_logged and seconds >= _UNREADY_LOG_SECONDS:
                reasons = [f"{name}: {reason}" for name, found in problems.items() for reason in found]
                log.warning("not ready", extra={"reasons": "; ".join(reasons), "for_seconds": seconds})
                is_logged = True
            await asyncio.sleep(_CHECK_INTERVAL_SECONDS)


def make_health_application(readiness: Readiness) -> web.Application:
    """Return the application that serves health and metrics."""
    exposing = asyncio.Lock()  # one thread at a time: more would delay the loop and other threads

    async def serve_readyz(request: web.Request) -> web.Response:
        problems = readiness.problems()
        failed = any(problems.values())
        if not failed and "verbose" not in request.query:
            return web.Response(text="ok")
        if not _is_loopback(request.remote or ""):
            problems = {name: (_WITHHELD,) if reasons else () for name, reasons in problems.items()}
        return web.Response(text=format_report(problems), status=503 if failed else 200)

    async def serve_metrics(request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")
        await exposing.acquire()
        exposition = asyncio.get_running_loop().run_in_executor(None, metrics.exposition, accept)
        exposition.add_done_callback(lambda _: exposing.release())
        # The thread continues if the client disconnects.
        body, content_type = await asyncio.shield(exposition)
        return web.Response(body=body, headers={"Content-Type": content_type})

    application = web.Application()
    application.router.add_get("/healthz", _serve_alive)
    application.router.add_get("/livez", _serve_alive)
    application.router.add_get("/readyz", serve_readyz)
    application.router.add_get("/metrics", serve_metrics)
    return application


def _is_loopback(caller: str) -> bool:
    address = parse_ip(caller)
    return address is not None and address.is_loopback


def format_report(problems: Mapping[str, tuple[str, ...]]) -> str:
    """Return the verbose report in the format of Kubernetes, with the reasons."""
    lines = []
    for name, reasons in problems.items():
        lines += [f"[-]{name} failed: {reason}" for reason in reasons] or [f"[+]{name} ok"]
    lines.append("readyz check failed" if any(problems.values()) else "readyz check passed")
    return "\n".join(lines) + "\n"


async def _serve_alive(request: web.Request) -> web.Response:
    # A response proves that the event loop runs. /healthz returns the same: the chart of the reference
    # controller probes liveness there, and an unreachable NATS must not restart the pod.
    verbose = "verbose" in request.query
    return web.Response(text=f"[+]loop ok\n{request.path[1:]} check passed\n" if verbose else "ok")
