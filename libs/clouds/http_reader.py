"""Sends requests to a cloud's HTTP API, with limits and without an exception; a write is sent once."""

import asyncio
import math
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from libs.clouds.balancers import WriteRejection
from libs.clouds.instances import NotFound, Outcome, RequestObserver, Unanswered
from libs.clouds.request_budget import RequestBudget
from libs.common.client_tls import make_client_context

DEADLINE_SECONDS: Final = 15.0
MAX_BODY_BYTES: Final = 4 << 20  # a page of 50 servers has 0.3 MB
_BAD_CREDENTIAL: Final = "the credential has characters that no header may have"
# Of the requests of a minute. Writes leave half of them to reads, which must still notice the end of each
# write by its deadline. Deletions wait behind neither: reads leave some requests, too.
_WRITE_SHARE: Final = 0.5
_DELETION_SHARE: Final = 1.0
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


class _NotSent(msgspec.Struct, frozen=True):
    """Nothing was sent."""

    reason: Unanswered


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
        max_concurrent: int = 1,
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
        self._slots = asyncio.Semaphore(max_concurrent)
        self._authorizing = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def get(
        self,
        path: str,
        query: Mapping[str, str] | Sequence[tuple[str, str]],
        read: ReadResponse[AnswerT],
        *,
        deadline: float | None = None,
    ) -> AnswerT | Unanswered:
        """Send a request as soon as the budget allows one, and return the result of `read`.

        `deadline` is a monotonic time at which all of it has ended.
        """
        share = self._budget.read_share
        answer = await self._send_in_turn("GET", path, read, deadline, {}, share=share, params=query)
        return answer.reason if isinstance(answer, _NotSent) else answer

    async def write(
        self,
        method: str,
        path: str,
        body: bytes | None,
        read: ReadResponse[AnswerT],
        *,
        deadline: float,
        if_match: str = "",
        is_deletion: bool | None = None,
    ) -> AnswerT | WriteRejection | Unanswered:
        """Send a request once, with a JSON document if there is one, and return the result of `read`.

        `if_match` is the value of the header If-Match, "" without it. `is_deletion` selects the share of the
        requests per minute; None: a DELETE is one.
        A rejection that is not of `read` proves that nothing was sent. Unanswered proves nothing: the request
        may still take effect.
        """
        is_deletion = method == "DELETE" if is_deletion is None else is_deletion
        headers = {} if body is None else {"Content-Type": "application/json"}
        headers |= {"If-Match": if_match} if if_match else {}
        answer = await self._send_in_turn(
            method,
            path,
            read,
            deadline,
            headers,
            share=_DELETION_SHARE if is_deletion else _WRITE_SHARE,
            data=body,
            middlewares=(_send_once,),
        )
        if not isinstance(answer, _NotSent):
            return answer
        why = answer.reason
        is_unauthorized = why.outcome == "unauthorized"
        return WriteRejection(
            kind="unauthorized" if is_unauthorized else "held_back",
            reason=why.reason,
            retry_after_seconds=why.retry_after_seconds,
        )

    async def post_form(
        self, path: str, form: Mapping[str, str], headers: Mapping[str, str], read: ReadResponse[AnswerT]
    ) -> AnswerT | Unanswered:
        """Exchange a credential for a token. Only for `authorize`, which runs once at a time."""
        answer = await self._request("POST", path, read, None, data=form, headers=headers)
        return answer.reason if isinstance(answer, _NotSent) else answer

    async def _send_in_turn(
        self,
        method: str,
        path: str,
        read: ReadResponse[AnswerT],
        deadline: float | None,
        headers: Mapping[str, str],
        *,
        share: float = 1.0,
        **options: Any,
    ) -> AnswerT | Unanswered | _NotSent:
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError:
            return _NotSent(Unanswered("held_back", f"{path}: too many requests wait"))
        try:
            if held := await self._wait_for_budget(deadline, share=share):
                return _NotSent(held)
            async with self._authorizing:
                # first: another credential has another rate limit
                credential = await self._authorize()
            if isinstance(credential, Unanswered):
                self._observe(credential.outcome, 0.0)  # no request shows that there is no credential
                return _NotSent(credential)
            if not all(value.isascii() and value.isprintable() for value in credential.values()):
                return _NotSent(Unanswered("unauthorized", f"{path}: {_BAD_CREDENTIAL}"))
            headers = {**headers, **credential}
            return await self._request(method, path, read, deadline, share=share, headers=headers, **options)
        finally:
            self._slots.release()

    async def _wait_for_budget(self, deadline: float | None, *, share: float) -> Unanswered | None:
        loop = asyncio.get_running_loop()
        while (wait := self._budget.seconds_until_allowed(loop.time(), share=share)) > 0:
            if deadline is not None and loop.time() + wait > deadline:
                return Unanswered("held_back", "the requests of this minute are used up", wait)
            await asyncio.sleep(wait)
        return None

    async def _request(
        self,
        method: str,
        path: str,
        read: ReadResponse[AnswerT],
        deadline: float | None,
        *,
        share: float = 1.0,
        **options: Any,
    ) -> AnswerT | Unanswered | _NotSent:
        if held := await self._wait_for_budget(deadline, share=share):
            return _NotSent(held)
        loop = asyncio.get_running_loop()
        started = loop.time()
        if paused := self._budget.why_paused(started):
            return _NotSent(paused)
        # After its deadline, a write may meet one of the next leader: this process may have stood still.
        if deadline is not None and started >= deadline:
            return _NotSent(Unanswered("held_back", f"{path}: not sent before its deadline"))
        self._budget.count_request(started)
        ends_at = min(started + self._deadline_seconds, math.inf if deadline is None else deadline)
        response = await self._send(method, path, ends_at, options)
        answer = read(response) if isinstance(response, HttpResponse) else response
        outcome = classify_answer(answer)
        if outcome == "rate_limited" and isinstance(answer, Unanswered | WriteRejection):
            self._budget.pause(answer.retry_after_seconds or 0.0, answer.reason, now=loop.time())
        self._observe(outcome, loop.time() - started)
        return answer

    async def _send(
        self, method: str, path: str, ends_at: float, options: Mapping[str, Any]
    ) -> HttpResponse | Unanswered | _NotSent:
        started = asyncio.get_running_loop().time()
        try:
            async with (
                asyncio.timeout_at(ends_at),
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
            seconds = round(ends_at - started, 1)
            return Unanswered("unreachable", f"{path}: no answer within {seconds:g} s")
        except aiohttp.ClientConnectorError as error:
            return _NotSent(Unanswered("unreachable", f"{path}: {type(error).__name__}: {error}"))
        except (aiohttp.ClientError, OSError) as error:
            return Unanswered("unreachable", f"{path}: {type(error).__name__}: {error}")
        except ValueError:  # its text could have the credential
            return Unanswered("unauthorized", f"{path}: {_BAD_CREDENTIAL}")

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._tls or True),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept": "application/json", "User-Agent": self._user_agent},
                timeout=aiohttp.ClientTimeout(total=None),  # the deadline covers everything
            )
        return self._session


async def _send_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending a PUT or DELETE again after a lost connection."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientError(f"{type(error).__name__}: {error}") from error


def classify_answer(answer: object) -> Outcome:
    """Return the outcome of a request for its metric."""
    if isinstance(answer, _NotSent):
        answer = answer.reason
    if isinstance(answer, Unanswered):
        return answer.outcome
    if isinstance(answer, WriteRejection):
        return answer.kind if answer.kind in {"unauthorized", "rate_limited", "held_back"} else "rejected"
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
