"""Reads JSON documents of a cloud's HTTP API: one request at a time, with limits, and no exception."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from libs.clouds.instances import NotFound, Outcome, RequestObserver, Unanswered
from libs.clouds.request_budget import RequestBudget
from libs.common.client_tls import make_client_context

DEADLINE_SECONDS: Final = 15.0
MAX_BODY_BYTES: Final = 4 << 20  # a page of 50 servers has 0.3 MB
_LOOPBACK: Final = {"localhost", "127.0.0.1", "::1"}

AnswerT = TypeVar("AnswerT")


class HttpResponse(msgspec.Struct, frozen=True):
    """A complete response with any status."""

    status: int
    headers: Mapping[str, str]
    body: bytes


ReadResponse = Callable[[HttpResponse], AnswerT]
# The headers with the current credential; called right before a request is sent.
Authorize = Callable[[], Awaitable[Mapping[str, str] | Unanswered]]


class HttpReader:
    """The connection to one endpoint. It verifies TLS, and follows no redirect."""

    def __init__(
        self,
        endpoint: str,
        *,
        authorize: Authorize,
        user_agent: str,
        budget: RequestBudget,
        observe: RequestObserver,
        deadline_seconds: float = DEADLINE_SECONDS,
        max_body_bytes: int = MAX_BODY_BYTES,
        ca_file: str = "",
    ) -> None:
        """Connect on first use inside a running loop. Raises ValueError for an unusable endpoint or file."""
        self._endpoint = endpoint.rstrip("/")
        self._tls = make_tls_context(ca_file) if needs_tls(self._endpoint) else None
        self._authorize = authorize
        self._user_agent = user_agent
        self._budget = budget
        self._observe = observe
        self._deadline_seconds = deadline_seconds
        self._max_body_bytes = max_body_bytes
        self._one_at_a_time = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def get(
        self, path: str, query: Mapping[str, str], read: ReadResponse[AnswerT]
    ) -> AnswerT | Unanswered:
        """Send a request as soon as the budget allows one, and return the result of `read`."""
        async with self._one_at_a_time:
            await self._wait_for_budget()
            headers = await self._authorize()  # first: another credential has another rate limit
            if isinstance(headers, Unanswered):
                return headers
            return await self._request("GET", path, read, params=query, headers=headers)

    async def post_form(
        self, path: str, form: Mapping[str, str], headers: Mapping[str, str], read: ReadResponse[AnswerT]
    ) -> AnswerT | Unanswered:
        """Exchange a credential for a token. Only for `authorize`, which runs while no other request does."""
        return await self._request("POST", path, read, data=form, headers=headers)

    async def _wait_for_budget(self) -> None:
        await asyncio.sleep(self._budget.seconds_until_allowed(asyncio.get_running_loop().time()))

    async def _request(
        self, method: str, path: str, read: ReadResponse[AnswerT], **options: Any
    ) -> AnswerT | Unanswered:
        await self._wait_for_budget()
        loop = asyncio.get_running_loop()
        started = loop.time()
        if paused := self._budget.why_paused(started):
            return paused
        self._budget.count_request(started)
        response = await self._send(method, path, options)
        answer = response if isinstance(response, Unanswered) else read(response)
        if isinstance(answer, Unanswered) and answer.outcome == "rate_limited":
            self._budget.pause(answer.retry_after_seconds or 0.0, answer.reason, now=loop.time())
        self._observe(classify_answer(answer), loop.time() - started)
        return answer

    async def _send(self, method: str, path: str, options: Mapping[str, Any]) -> HttpResponse | Unanswered:
        try:
            async with (
                asyncio.timeout(self._deadline_seconds),
                self._open_session().request(
                    method, self._endpoint + path, allow_redirects=False, **options
                ) as response,
            ):
                body = bytearray()
                async for part in response.content.iter_any():
                    body += part
                    if len(body) > self._max_body_bytes:
                        return Unanswered("malformed", f"{path}: more than {self._max_body_bytes} bytes")
                return HttpResponse(response.status, response.headers, bytes(body))
        except TimeoutError:
            return Unanswered("unreachable", f"{path}: no answer within {self._deadline_seconds:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Unanswered("unreachable", f"{path}: {type(error).__name__}: {error}")
        except ValueError:  # its text could have the credential
            return Unanswered(
                "unauthorized", f"{path}: the credential has characters that no header may have"
            )

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._tls or True),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept": "application/json", "User-Agent": self._user_agent},
                timeout=aiohttp.ClientTimeout(total=None),  # the deadline covers everything
            )
        return self._session


def classify_answer(answer: object) -> Outcome:
    """Return the outcome of a request for its metric."""
    if isinstance(answer, Unanswered):
        return answer.outcome
    return "not_found" if isinstance(answer, NotFound) else "found"


def needs_tls(endpoint: str) -> bool:
    """Return False for plain HTTP on the loopback. Raises ValueError if a credential must not go there."""
    parts = urlsplit(endpoint)
    if parts.username or parts.password or parts.query or parts.fragment or not parts.hostname:
        raise ValueError("the endpoint of the cloud is not a plain URL")
    if parts.scheme == "http" and parts.hostname in _LOOPBACK:
        return False
    if parts.scheme != "https":
        raise ValueError(f"the endpoint {endpoint} is not https: its credential would be sent in clear text")
    return True


def make_tls_context(ca_file: str = "") -> ssl.SSLContext:
    """Return the context that trusts the system's authorities, and those of the file.

    Raises ValueError for an unusable file.
    """
    context = make_client_context()
    context.load_default_certs()
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # also ssl.SSLError
            raise ValueError(f"authorities in {ca_file}: {error}") from error
    return context
