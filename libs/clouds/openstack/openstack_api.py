"""Requests to Nova and Neutron by the credential of one project in one region, with a login to Keystone."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from libs.clouds.account_session import AccountOptions, AccountSession
from libs.clouds.balancers import RejectionKind, WriteRejection
from libs.clouds.http_reader import AnswerT, HttpReader, HttpResponse, classify_answer
from libs.clouds.instances import Unanswered
from libs.clouds.openstack.cloud_file import parse_cloud_file, read_balancer_sections, read_router_id
from libs.clouds.openstack.login import Login, LoginOptions
from libs.clouds.openstack.responses import Service
from libs.clouds.request_budget import RequestBudget

# A deleted server takes three requests: for itself, its actions, and the events of its deletion. A round of
# them must leave as much to new Nodes as elsewhere, and Nova has no rate limit by default.
_REQUESTS_PER_QUERY: Final = 3
LOGIN_DEADLINE_SECONDS: Final = 30.0
_LOGIN_REQUESTS: Final = 4  # at most: versions of Keystone, the token, versions of Nova
_RENEW_BEFORE_SECONDS: Final = 300.0
_MIN_LOGIN_SECONDS: Final = 60.0
ParsedT = TypeVar("ParsedT")
_THREADS: Final = 2  # a login that hangs does not prevent the next one


class OpenStackApi:
    """The services of the project. It logs in before the first query, and before the token ends."""

    def __init__(
        self,
        options: AccountOptions,
        *,
        login_deadline_seconds: float = LOGIN_DEADLINE_SECONDS,
        session: AccountSession | None = None,
        budget: RequestBudget | None = None,
        services: tuple[Service, ...] = ("compute", "network"),
    ) -> None:
        """Raise ValueError for any endpoint. By default, session and budget are its own.

        `services` are those that requests are for: the endpoint of another one need not be usable.
        """
        if options.endpoint:
            raise ValueError(
                "the credential file of an OpenStack account names its endpoint: leave --cloud-endpoint out"
            )
        self.session = session or AccountSession(options, requests_per_query=_REQUESTS_PER_QUERY)
        self._budget = budget or self.session.budget
        self._services = services
        self._read_generation = -1
        self._options: LoginOptions | Unanswered = Unanswered("unauthorized", "not read")
        self._sections: Mapping[str, Mapping[str, str]] | Unanswered = {}
        self._router_id: str | Unanswered = self._options
        self._read_options()
        self._login_deadline_seconds = login_deadline_seconds
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="openstack-login")
        self._one_at_a_time = asyncio.Lock()
        self._login: Login | None = None
        self._login_generation = 0
        self._login_ends_at = 0.0  # monotonic
        self._readers: dict[Service, HttpReader] = {}

    def open_beside(
        self,
        *,
        requests_per_minute: int,
        services: tuple[Service, ...] = ("network", "load-balancer"),
    ) -> "OpenStackApi":
        """Return the API of other services with a login of its own, which does not wait for this one.

        Both share the credential and the pauses, but not the number of requests per minute.
        """
        budget = self.session.budget.share(requests_per_minute=requests_per_minute)
        return OpenStackApi(
            self.session.options,
            login_deadline_seconds=self._login_deadline_seconds,
            session=self.session,
            budget=budget,
            services=services,
        )

    def read_balancer_sections(self) -> Mapping[str, Mapping[str, str]] | Unanswered:
        """Return the settings of load balancers in the current credential file; see `cloud_file`."""
        self._read_options()
        return self._sections

    def read_router_id(self) -> str | Unanswered:
        """Return the router that the current credential file names; see `cloud_file`."""
        self._read_options()
        return self._router_id

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
            reader = self._readers.get(service)
            if reader is None:
                return _explain_missing(service)
            answer = await reader.get(path, query, lambda response: read(response, login))
            if isinstance(answer, Unanswered) and answer.outcome == "unauthorized":
                self._login = None  # the token was revoked; the next query logs in again
        return answer

    async def write(
        self,
        service: Service,
        method: str,
        path: str,
        body: bytes | None,
        read: Callable[[HttpResponse], AnswerT],
        *,
        deadline: float,
        if_match: str = "",
    ) -> AnswerT | WriteRejection | Unanswered:
        """Send a request once; see `HttpReader.write`. A failed login is a rejection."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._one_at_a_time.acquire()
        except TimeoutError:
            return WriteRejection(kind="held_back", reason=f"{path}: too many requests wait")
        try:
            login = await self._log_in()
            reader = self._readers.get(service)
            if isinstance(login, Unanswered) or reader is None:
                why = login if isinstance(login, Unanswered) else _explain_missing(service)
                kind: RejectionKind = "unauthorized" if why.outcome == "unauthorized" else "held_back"
                return WriteRejection(
                    kind=kind, reason=why.reason, retry_after_seconds=why.retry_after_seconds
                )
            answer = await reader.write(method, path, body, read, deadline=deadline, if_match=if_match)
            if isinstance(answer, WriteRejection) and answer.kind == "unauthorized":
                self._login = None
            return answer
        finally:
            self._one_at_a_time.release()

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
        loop, budget = asyncio.get_running_loop(), self._budget
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
        endpoints: dict[Service, str] = {
            "compute": login.compute,
            "network": login.network,
            "load-balancer": login.load_balancer,
        }
        generation = self.session.credential.generation
        try:
            self._readers = {
                service: self.session.open_reader(
                    endpoint,
                    partial(self._authorize, service, login, generation),
                    ca_file=login.ca_file,
                    budget=self._budget,
                )
                for service, endpoint in endpoints.items()
                if endpoint and service in self._services
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
        content = self.session.read_credential()
        if isinstance(content, Unanswered):
            return content
        if self.session.credential.generation != self._read_generation:
            self._read_generation = self.session.credential.generation
            self._options = _parse(parse_cloud_file, content)
            self._sections = _parse(read_balancer_sections, content)
            self._router_id = _parse(read_router_id, content)
        return self._options


def _parse(parse: Callable[[str], ParsedT], content: str) -> ParsedT | Unanswered:
    try:
        return parse(content)
    except ValueError as error:
        return Unanswered("unauthorized", str(error))


def _explain_missing(service: Service) -> Unanswered:
    return Unanswered("malformed", f"the catalogue has no service {service} in this region")


def _log_in_with_library(options: LoginOptions, user_agent: str) -> Login | Unanswered:
    from libs.clouds.openstack.keystone import log_in  # noqa: PLC0415 - 40 MB, only for an account of OpenStack

    return log_in(options, user_agent=user_agent)
