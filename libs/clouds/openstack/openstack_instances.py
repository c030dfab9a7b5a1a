"""The servers of one OpenStack project in one region, and the project's networks, which outlive them."""

import asyncio
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from libs.clouds.credential_file import CredentialFile
from libs.clouds.http_reader import DEADLINE_SECONDS, HttpReader, HttpResponse, classify_answer
from libs.clouds.instances import (
    Anchor,
    Credential,
    Deleted,
    Instance,
    NotFound,
    RateLimit,
    RequestObserver,
    Unanswered,
)
from libs.clouds.openstack.cloud_file import parse_cloud_file
from libs.clouds.openstack.login import Login, LoginOptions
from libs.clouds.openstack.responses import (
    NETWORK,
    PER_PAGE,
    PROJECT,
    UUID,
    Action,
    Page,
    Service,
    explain_contradiction,
    has_terminated,
    is_deletion,
    read_action,
    read_anchor,
    read_first_anchor,
    read_last_action,
    read_project,
    read_server,
    read_servers,
)
from libs.clouds.request_budget import REQUESTS_PER_MINUTE, RequestBudget
from libs.common.clocks import utc_now

PROVIDER: Final = "openstack"
# A deleted server takes three requests: for itself, its actions, and the events of its deletion. A round must
# not take longer than elsewhere, and Nova has no rate limit by default.
_REQUESTS_PER_QUERY: Final = 2
LOGIN_DEADLINE_SECONDS: Final = 30.0
_LOGIN_REQUESTS: Final = 4  # at most: versions of Keystone, the token, versions of Nova
_RENEW_BEFORE_SECONDS: Final = 300.0
_MIN_LOGIN_SECONDS: Final = 60.0
_THREADS: Final = 2  # a login that hangs does not prevent the next one

_UUID: Final = re.compile(UUID)
_ANCHORS: Final = {NETWORK: _UUID, PROJECT: re.compile(r"[0-9a-f-]{32,36}@[A-Za-z0-9._-]{1,64}")}

ResultT = TypeVar("ResultT")


class OpenStackInstances:
    """Implements Instances for the project and region of a credential."""

    def __init__(
        self,
        credential: Path | str,
        *,
        user_agent: str,
        endpoint: str = "",
        anchor: Anchor | None = None,
        requests_per_minute: int = REQUESTS_PER_MINUTE,
        deadline_seconds: float = DEADLINE_SECONDS,
        login_deadline_seconds: float = LOGIN_DEADLINE_SECONDS,
        observe: RequestObserver = lambda outcome, seconds: None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`credential` is a file or its text, `anchor` the configured one.

        Raises ValueError for an unusable anchor, and for any endpoint.
        """
        if endpoint:
            raise ValueError(
                "the credential file of an OpenStack account names its endpoint: leave --cloud-endpoint out"
            )
        if anchor is not None and (problem := _explain_no_anchor(anchor)):
            raise ValueError(problem)
        self._file = CredentialFile(credential, now=now)
        content = self._file.read()
        self._options = content if isinstance(content, Unanswered) else _parse_options(content)
        self._user_agent = user_agent
        self._anchor = anchor
        self._budget = RequestBudget(requests_per_minute=_REQUESTS_PER_QUERY * requests_per_minute)
        self._deadline_seconds = deadline_seconds
        self._login_deadline_seconds = login_deadline_seconds
        self._observe = observe
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="openstack-login")
        self._one_at_a_time = asyncio.Lock()
        self._login: Login | None = None
        self._login_generation = 0
        self._login_ends_at = 0.0  # monotonic
        self._readers: dict[Service, HttpReader] = {}

    @property
    def provider(self) -> str:
        """The scheme of providerIDs."""
        return PROVIDER

    @property
    def credential(self) -> Credential:
        """The last reading of the credential file."""
        return self._file.credential

    @property
    def rate_limit(self) -> RateLimit | None:
        """None: OpenStack reports no count."""
        return None

    def parse_provider_id(self, provider_id: str) -> str | None:
        """Return the UUID of `openstack:///UUID`, or of `openstack://REGION/UUID` in the file's region."""
        scheme, _, rest = provider_id.partition("://")
        region, _, server_id = rest.partition("/")
        if scheme != PROVIDER or not _UUID.fullmatch(server_id):
            return None
        is_here = not region or (isinstance(self._options, LoginOptions) and self._options.region == region)
        return server_id if is_here else None

    async def list_instances(self) -> tuple[Instance, ...] | Unanswered:
        """Return all servers of one listing."""
        return await self._list_servers({})

    async def get_instance(self, instance_id: str) -> Instance | Deleted | NotFound | Unanswered:
        """Return the server with exactly this id, or whether Nova itself says that it has deleted it."""
        path = f"/servers/{instance_id}"
        if not _UUID.fullmatch(instance_id):
            return Unanswered("malformed", f"{instance_id!r} is not an id")
        found = await self._get("compute", path, {}, partial(read_server, server_id=instance_id))
        if not isinstance(found, NotFound):
            return found
        actions = f"{path}/os-instance-actions"
        last = await self._get("compute", actions, {}, partial(read_last_action, server_id=instance_id))
        if not isinstance(last, Action) or not is_deletion(last, instance_id):
            return found
        number = last.request_id
        last = await self._get("compute", f"{actions}/{number}", {}, partial(read_action, request_id=number))
        if not isinstance(last, Action) or not is_deletion(last, instance_id) or not has_terminated(last):
            return found
        return Deleted()

    async def find_by_name(self, name: str) -> tuple[Instance, ...] | Unanswered:
        """Return all servers with exactly this name; names are not unique."""
        # Nova takes a regular expression. A name has dots, which match more; none of its matches is left out.
        found = await self._list_servers({"name": f"^{name}$"})
        return found if isinstance(found, Unanswered) else tuple(each for each in found if each.name == name)

    async def find_anchor(self) -> Anchor | Unanswered | None:
        """Return the configured anchor, else the first network of the project, else the project."""
        if self._anchor is not None:
            found = await self.get_anchor(self._anchor)
            return None if isinstance(found, NotFound) else found
        return await self._get("network", "/networks", {}, read_first_anchor)

    async def get_anchor(self, anchor: Anchor) -> Anchor | NotFound | Unanswered:
        """Return the network if it belongs to the project, or the project and region of the credential."""
        if problem := _explain_no_anchor(anchor):
            return Unanswered("malformed", problem)
        if anchor.kind == PROJECT:
            query = {"limit": "1"}
            return await self._get("compute", "/servers/detail", query, partial(read_project, anchor=anchor))
        path = f"/networks/{anchor.id}"
        return await self._get("network", path, {}, partial(read_anchor, network_id=anchor.id))

    async def close(self) -> None:
        """Close all connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._close_readers()

    async def _list_servers(self, query: Mapping[str, str]) -> tuple[Instance, ...] | Unanswered:
        pages: list[Page] = []
        generations: set[int] = set()
        while not pages or pages[-1].has_next:
            marker = {"marker": pages[-1].instances[-1].id} if pages else {}
            page = await self._get(
                "compute", "/servers/detail", {**query, "limit": str(PER_PAGE), **marker}, read_servers
            )
            generations.add(self.credential.generation)
            if len(generations) > 1:
                return Unanswered("unauthorized", "the credential changed while servers were listed")
            if isinstance(page, Unanswered):
                return page
            pages.append(page)
            if problem := explain_contradiction(pages):
                return Unanswered("malformed", f"/servers: {problem}")
        return tuple(each for page in pages for each in page.instances)

    async def _get(
        self,
        service: Service,
        path: str,
        query: Mapping[str, str],
        read: Callable[[HttpResponse, Login], ResultT],
    ) -> ResultT | Unanswered:
        async with self._one_at_a_time:
            login = await self._log_in()
            if isinstance(login, Unanswered):
                return login
            answer = await self._readers[service].get(path, query, lambda response: read(response, login))
            if isinstance(answer, Unanswered) and answer.outcome == "unauthorized":
                self._login = None  # the token was revoked; the next query logs in again
        return answer

    # ---- the login

    async def _log_in(self) -> Login | Unanswered:
        """Return the login of the current credential; log in if there is none, or it ends soon."""
        options = self._read_options()
        if isinstance(options, Unanswered):
            return options
        loop = asyncio.get_running_loop()
        is_current = self._login_generation == self.credential.generation
        if self._login is not None and is_current and loop.time() < self._login_ends_at:
            return self._login
        self._login = None
        await asyncio.sleep(self._budget.seconds_until_allowed(loop.time()))
        started = loop.time()
        if paused := self._budget.why_paused(started):
            return paused
        for _ in range(_LOGIN_REQUESTS):
            self._budget.count_request(started)
        generation = self.credential.generation
        login = await self._log_in_thread(options)
        self._observe(classify_answer(login), loop.time() - started)
        if isinstance(login, Login):
            login = await self._open_readers(login)
        if isinstance(login, Unanswered):
            # Many wrong passwords can lock the user out.
            self._budget.pause(login.retry_after_seconds or 0.0, login.reason, now=loop.time())
            return login
        lifetime = max(login.lifetime_seconds - _RENEW_BEFORE_SECONDS, _MIN_LOGIN_SECONDS)
        self._login, self._login_generation = login, generation
        self._login_ends_at = started + lifetime
        return login

    async def _log_in_thread(self, options: LoginOptions) -> Login | Unanswered:
        """Wait for the login no longer than the deadline; the thread ends by the library's own timeouts."""
        call = partial(_log_in_with_library, options, self._user_agent)
        try:
            async with asyncio.timeout(self._login_deadline_seconds):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except TimeoutError:
            return Unanswered("unreachable", f"login: no answer within {self._login_deadline_seconds:g} s")

    async def _open_readers(self, login: Login) -> Login | Unanswered:
        await self._close_readers()
        endpoints: dict[Service, str] = {"compute": login.compute, "network": login.network}
        try:
            self._readers = {
                service: HttpReader(
                    endpoint,
                    authorize=partial(self._authorize, service, login, self.credential.generation),
                    user_agent=self._user_agent,
                    budget=self._budget,
                    observe=self._observe,
                    deadline_seconds=self._deadline_seconds,
                    ca_file=login.ca_file,
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
        if self.credential.generation != generation:
            return Unanswered("unauthorized", "the credential changed since the login")
        version = {"OpenStack-API-Version": f"compute {login.microversion}"} if service == "compute" else {}
        return {"X-Auth-Token": login.token, **version}

    def _read_options(self) -> LoginOptions | Unanswered:
        """Return the options of the current file."""
        generation = self.credential.generation
        content = self._file.read()
        if isinstance(content, Unanswered):
            return content
        if self.credential.generation != generation:
            self._budget.forget_rate_limit()  # of the former credential, also a pause after a failed login
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


def _explain_no_anchor(anchor: Anchor) -> str:
    if anchor.kind not in _ANCHORS:
        return f"no kind of anchor: {anchor.kind!r}; known are {', '.join(_ANCHORS)}"
    return "" if _ANCHORS[anchor.kind].fullmatch(anchor.id) else f"no id of an anchor: {anchor.id!r}"
