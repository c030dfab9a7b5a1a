"""Requests to Nova and Neutron by the credential of one project in one region, with a login to Keystone."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from libs.clouds.account_session import AccountOptions, AccountSession
from libs.clouds.http_reader import AnswerT, HttpReader, HttpResponse, classify_answer
from libs.clouds.instances import Unanswered
from libs.clouds.openstack.cloud_file import parse_cloud_file
from libs.clouds.openstack.login import Login, LoginOptions
from libs.clouds.openstack.responses import Service

# A deleted server takes three requests: for itself, its actions, and the events of its deletion. A round of
# them must leave as much to new Nodes as elsewhere, and Nova has no rate limit by default.
_REQUESTS_PER_QUERY: Final = 3
LOGIN_DEADLINE_SECONDS: Final = 30.0
_LOGIN_REQUESTS: Final = 4  # at most: versions of Keystone, the token, versions of Nova
_RENEW_BEFORE_SECONDS: Final = 300.0
_MIN_LOGIN_SECONDS: Final = 60.0
_THREADS: Final = 2  # a login that hangs does not prevent the next one


class OpenStackApi:
    """The services of the project. It logs in before the first query, and before the token ends."""

    def __init__(
        self, options: AccountOptions, *, login_deadline_seconds: float = LOGIN_DEADLINE_SECONDS
    ) -> None:
        """Raise ValueError for any endpoint."""
        if options.endpoint:
            raise ValueError(
                "the credential file of an OpenStack account names its endpoint: leave --cloud-endpoint out"
            )
        self.session = AccountSession(options, requests_per_query=_REQUESTS_PER_QUERY)
        content = self.session.read_credential()
        self._options = content if isinstance(content, Unanswered) else _parse_options(content)
        self._login_deadline_seconds = login_deadline_seconds
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="openstack-login")
        self._one_at_a_time = asyncio.Lock()
        self._login: Login | None = None
        self._login_generation = 0
        self._login_ends_at = 0.0  # monotonic
        self._readers: dict[Service, HttpReader] = {}

    @property
    def region(self) -> str:
        """The region that the credential file names."""
        return self._options.region if isinstance(self._options, LoginOptions) else ""

    async def get(
        self,
        service: Service,
        path: str,
        query: Mapping[str, str],
        read: Callable[[HttpResponse, Login], AnswerT],
    ) -> AnswerT | Unanswered:
        """Send a request, and return what `read` makes of the response and the login."""
        async with self._one_at_a_time:
            login = await self._log_in()
            if isinstance(login, Unanswered):
                return login
            answer = await self._readers[service].get(path, query, lambda response: read(response, login))
            if isinstance(answer, Unanswered) and answer.outcome == "unauthorized":
                self._login = None  # the token was revoked; the next query logs in again
        return answer

    async def close(self) -> None:
        """Close all connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._close_readers()

    # ---- the login

    async def _log_in(self) -> Login | Unanswered:
        """Return the login of the current credential; log in if there is none, or it ends soon."""
        options = self._read_options()
        if isinstance(options, Unanswered):
            return options
        loop, budget = asyncio.get_running_loop(), self.session.budget
        is_current = self._login_generation == self.session.credential.generation
        if self._login is not None and is_current and loop.time() < self._login_ends_at:
            return self._login
        self._login = None
        await asyncio.sleep(budget.seconds_until_allowed(loop.time()))
        started = loop.time()
        if paused := budget.why_paused(started):
            return paused
        for _ in range(_LOGIN_REQUESTS):
            budget.count_request(started)
        generation = self.session.credential.generation
        login = await self._log_in_thread(options)
        self.session.options.observe(classify_answer(login), loop.time() - started)
        if isinstance(login, Login):
            login = await self._open_readers(login)
        if isinstance(login, Unanswered):
            # Many wrong passwords can lock the user out.
            budget.pause(login.retry_after_seconds or 0.0, login.reason, now=loop.time())
            return login
        lifetime = max(login.lifetime_seconds - _RENEW_BEFORE_SECONDS, _MIN_LOGIN_SECONDS)
        self._login, self._login_generation = login, generation
        self._login_ends_at = started + lifetime
        return login

    async def _log_in_thread(self, options: LoginOptions) -> Login | Unanswered:
        """Wait for the login no longer than the deadline; the thread ends by the library's own timeouts."""
        call = partial(_log_in_with_library, options, self.session.options.user_agent)
        try:
            async with asyncio.timeout(self._login_deadline_seconds):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except TimeoutError:
            return Unanswered("unreachable", f"login: no answer within {self._login_deadline_seconds:g} s")

    async def _open_readers(self, login: Login) -> Login | Unanswered:
        await self._close_readers()
        endpoints: dict[Service, str] = {"compute": login.compute, "network": login.network}
        generation = self.session.credential.generation
        try:
            self._readers = {
                service: self.session.open_reader(
                    endpoint, partial(self._authorize, service, login, generation), ca_file=login.ca_file
                )
                for service, endpoint in endpoints.items()
            }
        except ValueError as error:  # the catalogue names an endpoint that must not get the token
            return Unanswered("malformed", f"login: {error}")
        return login

    async def _close_readers(self) -> None:
        for reader in self._readers.values():
            await reader.close()
        self._readers = {}

    async def _authorize(
        self, service: Service, login: Login, generation: int
    ) -> Mapping[str, str] | Unanswered:
        options = self._read_options()
        if isinstance(options, Unanswered):
            return options
        if self.session.credential.generation != generation:
            return Unanswered("unauthorized", "the credential changed since the login")
        version = {"OpenStack-API-Version": f"compute {login.microversion}"} if service == "compute" else {}
        return {"X-Auth-Token": login.token, **version}

    def _read_options(self) -> LoginOptions | Unanswered:
        """Return the options of the current file."""
        generation = self.session.credential.generation
        content = self.session.read_credential()
        if isinstance(content, Unanswered):
            return content
        if self.session.credential.generation != generation:
            self._options = _parse_options(content)
        return self._options


def _parse_options(content: str) -> LoginOptions | Unanswered:
    try:
        return parse_cloud_file(content)
    except ValueError as error:
        return Unanswered("unauthorized", str(error))


def _log_in_with_library(options: LoginOptions, user_agent: str) -> Login | Unanswered:
    from libs.clouds.openstack.keystone import log_in  # noqa: PLC0415 - 40 MB, only for an account of OpenStack

    return log_in(options, user_agent=user_agent)
