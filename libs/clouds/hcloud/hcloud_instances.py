"""The servers of one project of Hetzner Cloud, and the project's objects that outlive them."""

import asyncio
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from libs.clouds.credential_file import CredentialFile
from libs.clouds.hcloud.responses import (
    PER_PAGE,
    Entity,
    ItemT,
    Page,
    Server,
    build_instance,
    explain_contradiction,
    read_item,
    read_page,
    read_rate_limit,
)
from libs.clouds.http_reader import DEADLINE_SECONDS, HttpReader, HttpResponse
from libs.clouds.instances import (
    CREDENTIAL_ANCHOR,
    Anchor,
    Credential,
    Deleted,
    Instance,
    NotFound,
    RateLimit,
    RequestObserver,
    Unanswered,
)
from libs.clouds.request_budget import REQUESTS_PER_MINUTE, RequestBudget
from libs.common.clocks import utc_now

PROVIDER: Final = "hcloud"
ENDPOINT: Final = "https://api.hetzner.cloud/v1"

_ID: Final = re.compile(r"[1-9][0-9]{0,18}")
# Kind of anchor: path of the list, key of one object. Images without the type snapshot are the cloud's own,
# which every token finds, or backups, which go with their server.
_ANCHORS: Final = {
    "network": ("/networks", "network"),
    "ssh_key": ("/ssh_keys", "ssh_key"),
    "firewall": ("/firewalls", "firewall"),
    "volume": ("/volumes", "volume"),
    "snapshot": ("/images", "image"),
}

ResultT = TypeVar("ResultT")


class HcloudInstances:
    """Implements Instances for the project of a token."""

    def __init__(
        self,
        token: Path | str,
        *,
        user_agent: str,
        endpoint: str = "",
        anchor: Anchor | None = None,
        requests_per_minute: int = REQUESTS_PER_MINUTE,
        deadline_seconds: float = DEADLINE_SECONDS,
        observe: RequestObserver = lambda outcome, seconds: None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`token` is a file or a text, `anchor` the configured one; `endpoint` "" is the public one.

        Raises ValueError for an unusable endpoint or anchor.
        """
        if anchor is not None and (problem := _explain_no_anchor(anchor)):
            raise ValueError(problem)
        self._token = CredentialFile(token, is_random=True, now=now)
        self._anchor = anchor
        self._now = now
        self._budget = RequestBudget(requests_per_minute=requests_per_minute)
        self._http = HttpReader(
            endpoint or ENDPOINT,
            authorize=self._authorize,
            user_agent=user_agent,
            budget=self._budget,
            observe=observe,
            deadline_seconds=deadline_seconds,
        )

    @property
    def provider(self) -> str:
        """The scheme of providerIDs."""
        return PROVIDER

    @property
    def credential(self) -> Credential:
        """The last reading of the token."""
        return self._token.credential

    @property
    def rate_limit(self) -> RateLimit | None:
        """The last rate limit that the cloud reported for this token."""
        return self._budget.rate_limit

    def parse_provider_id(self, provider_id: str) -> str | None:
        """Return the digits of `hcloud://digits`; dedicated servers have no such providerID."""
        scheme, separator, server_id = provider_id.partition("://")
        is_canonical = scheme == PROVIDER and separator and _ID.fullmatch(server_id)
        return server_id if is_canonical else None

    async def list_instances(self) -> tuple[Instance, ...] | Unanswered:
        """Return all servers of one listing."""
        return await self._list_servers({})

    async def get_instance(self, instance_id: str) -> Instance | Deleted | NotFound | Unanswered:
        """Return the server with exactly this id; this cloud never says that one was deleted."""
        found = await self._get_item("/servers", "server", instance_id, Server)
        return build_instance(found) if isinstance(found, Server) else found

    async def find_by_name(self, name: str) -> tuple[Instance, ...] | Unanswered:
        """Return the server with exactly this name; names are unique in a project."""
        found = await self._list_servers({"name": name})
        return found if isinstance(found, Unanswered) else tuple(each for each in found if each.name == name)

    async def find_anchor(self) -> Anchor | Unanswered | None:
        """Return the configured anchor, else the oldest object of the first kind, else that of the token."""
        if self._anchor is not None:
            found = await self.get_anchor(self._anchor)
            return None if isinstance(found, NotFound) else found
        for kind, (path, _) in _ANCHORS.items():
            query = {"type": "snapshot"} if kind == "snapshot" else {}
            page = await self._get_page(path, {**query, "page": "1", "per_page": str(PER_PAGE)}, Entity)
            if isinstance(page, Unanswered):
                return page
            ids = [each.id for each in page.items if kind != "snapshot" or each.type == "snapshot"]
            if ids:
                return Anchor(kind, str(min(ids)))
        return Anchor(CREDENTIAL_ANCHOR, self.credential.fingerprint)

    async def get_anchor(self, anchor: Anchor) -> Anchor | NotFound | Unanswered:
        """Return the anchor if the project has it."""
        if problem := _explain_no_anchor(anchor):
            return Unanswered("malformed", problem)
        path, key = _ANCHORS[anchor.kind]
        found = await self._get_item(path, key, anchor.id, Entity)
        if not isinstance(found, Entity):
            return found
        if anchor.kind == "snapshot" and found.type != "snapshot":
            return Unanswered("malformed", f"image {anchor.id} is no snapshot")
        return anchor

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def _list_servers(self, query: Mapping[str, str]) -> tuple[Instance, ...] | Unanswered:
        pages: list[Page[Server]] = []
        generations: set[int] = set()
        while not pages or pages[-1].pagination.next_page is not None:
            number = {"page": str(len(pages) + 1), "per_page": str(PER_PAGE)}
            page = await self._get_page("/servers", {**query, **number}, Server)
            if isinstance(page, Unanswered):
                return page
            pages.append(page)
            generations.add(self.credential.generation)
            if len(generations) > 1:
                return Unanswered("unauthorized", "the token changed while servers were listed")
            if problem := explain_contradiction(pages):
                return Unanswered("malformed", f"/servers: {problem}")
        instances: list[Instance] = []
        for server in (server for page in pages for server in page.items):
            built = build_instance(server)
            if isinstance(built, Unanswered):
                return built
            instances.append(built)
        return tuple(instances)

    async def _get_item(
        self, path: str, key: str, object_id: str, item: type[ItemT]
    ) -> ItemT | NotFound | Unanswered:
        if not _ID.fullmatch(object_id):
            return Unanswered("malformed", f"{object_id!r} is not an id")
        found = await self._get(f"{path}/{object_id}", {}, lambda response: read_item(response, key, item))
        if isinstance(found, NotFound | Unanswered) or str(found.id) == object_id:
            return found
        return Unanswered("malformed", f"{path}/{object_id}: the answer has the id {found.id}")

    async def _get_page(
        self, path: str, query: Mapping[str, str], item: type[ItemT]
    ) -> Page[ItemT] | Unanswered:
        return await self._get(path, query, lambda response: read_page(response, path.strip("/"), item))

    async def _get(
        self, path: str, query: Mapping[str, str], read: Callable[[HttpResponse], ResultT]
    ) -> ResultT | Unanswered:
        def record_and_read(response: HttpResponse) -> ResultT:
            self._record_rate_limit(response)
            return read(response)

        return await self._http.get(path, query, record_and_read)

    async def _authorize(self) -> Mapping[str, str] | Unanswered:
        generation = self.credential.generation
        token = self._token.read()
        if self.credential.generation != generation:
            self._budget.forget_rate_limit()
        if isinstance(token, str) and not (token.isascii() and token.isprintable()):
            return Unanswered("unauthorized", "the token has characters that no HTTP header may have")
        return token if isinstance(token, Unanswered) else {"Authorization": f"Bearer {token}"}

    def _record_rate_limit(self, response: HttpResponse) -> None:
        now = asyncio.get_running_loop().time()
        reported = read_rate_limit(response, unix_time=self._now().timestamp())
        if reported is not None:
            self._budget.record_rate_limit(reported[0], full_in_seconds=reported[1], now=now)


def _explain_no_anchor(anchor: Anchor) -> str:
    if anchor.kind not in _ANCHORS:
        return f"no kind of anchor: {anchor.kind!r}; known are {', '.join(_ANCHORS)}"
    return "" if _ID.fullmatch(anchor.id) else f"no id of an anchor: {anchor.id!r}"
