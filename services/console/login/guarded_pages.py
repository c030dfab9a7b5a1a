"""Refuses the requests of other sites, and those without a session; adds the security headers."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from aiohttp import web

from services.console.login.login_pages import LoginPages, redirect
from services.console.login.request_guard import RESPONSE_HEADERS, RequestHead, explain_refusal
from services.console.login.session_keeper import LoginRefusal

_PUBLIC: Final = ("/login", "/logout", "/app.css", "/icon.svg")  # need no session


class GuardedPages:
    """The middleware of a server of pages, with their data below /api/."""

    def __init__(self, hosts: Sequence[str] = (), login: LoginPages | None = None) -> None:
        """Without a login, it answers everyone who reaches it by a loopback name."""
        self._hosts = hosts
        self._login = login

    def find_user(self, request: web.Request) -> str | LoginRefusal:
        """Return the user of the session, "" if the request needs none."""
        if self._login is None or request.path in _PUBLIC:
            return ""
        return self._login.check_session(request)

    @web.middleware
    async def check(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Return the response of the handler, or a refusal."""
        response: web.StreamResponse
        head = RequestHead(
            host=request.headers.get("Host", ""),
            fetch_site=request.headers.get("Sec-Fetch-Site", ""),
            origin=request.headers.get("Origin", ""),
            is_data=request.path.startswith("/api/"),
            is_write=self._login is not None and request.method not in ("GET", "HEAD"),
        )
        user = self.find_user(request)
        if why := explain_refusal(head, self._hosts):
            response = web.Response(status=403, text=f"{why}\n")
        elif isinstance(user, LoginRefusal):
            response = web.Response(status=user.status, text=f"{user.reason}\n")
            if user.status == 401 and not head.is_data:
                response = redirect("/login")
        else:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = web.Response(status=error.status, text=f"{error.reason}\n")
        if not response.prepared:
            response.headers.update(RESPONSE_HEADERS)
        return response
