"""The login page, what its form sends, and the cookie of a session."""

import asyncio
import html
from typing import Final
from urllib.parse import parse_qs

from aiohttp import web

from services.console.login.session_keeper import LoginRefusal, SessionKeeper

FORM_BYTES: Final = 32 * 2**10  # a token is far smaller
_FORM_SECONDS: Final = 5.0  # for its whole body
_FORM_TYPE: Final = "application/x-www-form-urlencoded"


class LoginPages:
    """Serves /login and /logout. The page has `<!-- problem -->` in place of why a login failed."""

    def __init__(self, keeper: SessionKeeper, page: str, cookie: str) -> None:
        self._keeper = keeper
        self._page = page
        # The prefix forbids a Domain: no other host can set this cookie, such as to a session of its own.
        self.cookie = f"__Host-{cookie}"

    def add_to(self, application: web.Application) -> None:
        """Add the paths. The application has to refuse forms of other sites (`GuardedPages`)."""
        application.router.add_get("/login", self._serve)
        application.router.add_post("/login", self._log_in)
        application.router.add_post("/logout", self._log_out)

    def check_session(self, request: web.Request) -> str | LoginRefusal:
        """Return the user of the session."""
        return self._keeper.check_session(request.cookies.get(self.cookie, ""))

    async def _serve(self, request: web.Request) -> web.Response:
        return self._render(200, "")

    async def _log_in(self, request: web.Request) -> web.Response:
        if request.content_type != _FORM_TYPE:
            return self._render(415, f"The form is no {_FORM_TYPE}.")
        try:
            async with asyncio.timeout(_FORM_SECONDS):
                form = parse_qs((await request.read()).decode(errors="replace"))
        except TimeoutError:
            return self._render(408, "The form did not arrive in time.")
        except web.RequestPayloadError:
            return self._render(400, "The form cannot be read.")
        outcome = await self._keeper.log_in(form.get("token", [""])[0].strip(), request.remote or "")
        if isinstance(outcome, LoginRefusal):
            return self._render(outcome.status, outcome.reason)
        self._keeper.log_out(request.cookies.get(self.cookie, ""))
        response = redirect("/")
        response.set_cookie(self.cookie, outcome, secure=True, httponly=True, samesite="Strict", path="/")
        return response

    async def _log_out(self, request: web.Request) -> web.Response:
        self._keeper.log_out(request.cookies.get(self.cookie, ""))
        response = redirect("/login")
        response.del_cookie(self.cookie, secure=True, httponly=True, samesite="Strict", path="/")
        return response

    def _render(self, status: int, problem: str) -> web.Response:
        alert = f'<p class="text-bad" role="alert">{html.escape(problem)}</p>' if problem else ""
        text = self._page.replace("<!-- problem -->", alert)
        return web.Response(status=status, text=text, content_type="text/html")


def redirect(path: str) -> web.Response:
    """Return the response that lets a browser open another path."""
    return web.Response(status=303, headers={"Location": path})
