"""Requests to the Hetzner Cloud API by the token of one project."""

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Final

from libs.clouds.account_session import AccountOptions, AccountSession
from libs.clouds.balancers import WriteRejection
from libs.clouds.hcloud.responses import (
    PER_PAGE,
    ItemT,
    Page,
    explain_contradiction,
    read_item,
    read_page,
    read_rate_limit,
)
from libs.clouds.http_reader import AnswerT, HttpResponse, ReadResponse
from libs.clouds.instances import NotFound, Unanswered
from libs.clouds.request_budget import RequestBudget

ENDPOINT: Final = "https://api.hetzner.cloud/v1"
# At most 18 digits: the API cannot read a document with a number beyond 64 bits, so one such providerID would
# keep all Services from a load balancer.
ID: Final = re.compile(r"[1-9][0-9]{0,17}")


class HcloudApi:
    """The project's objects, by exact id or by complete lists. It records the rate limit of the project."""

    def __init__(
        self,
        options: AccountOptions,
        *,
        session: AccountSession | None = None,
        budget: RequestBudget | None = None,
        max_concurrent: int = 1,
    ) -> None:
        """Raise ValueError for an unusable endpoint. By default, session and budget are its own."""
        self.session = session or AccountSession(options, is_random=True)
        self._http = self.session.open_reader(
            options.endpoint or ENDPOINT, self._authorize, budget=budget, max_concurrent=max_concurrent
        )

    def open_beside(self, *, requests_per_minute: int, max_concurrent: int) -> "HcloudApi":
        """Return the API with connections of its own, whose requests do not wait for those of this one.

        Both share the token and its rate limit, but not the number of requests per minute.
        """
        budget = self.session.budget.share(requests_per_minute=requests_per_minute)
        return HcloudApi(
            self.session.options, session=self.session, budget=budget, max_concurrent=max_concurrent
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def get_item(
        self, path: str, key: str, object_id: str, item: type[ItemT]
    ) -> ItemT | NotFound | Unanswered:
        """Return the object with exactly this id, which is below `key` in the response."""
        if not ID.fullmatch(object_id):
            return Unanswered("malformed", f"{object_id!r} is not an id")
        read = self._recording(lambda response: read_item(response, key, item))
        found = await self._http.get(f"{path}/{object_id}", {}, read)
        if isinstance(found, NotFound | Unanswered) or str(found.id) == object_id:
            return found
        return Unanswered("malformed", f"{path}/{object_id}: the answer has the id {found.id}")

    async def list_items(
        self, path: str, query: Mapping[str, str], item: type[ItemT]
    ) -> tuple[ItemT, ...] | Unanswered:
        """Return all objects of one listing."""

        async def read_next(before: list[Page[ItemT]]) -> Page[ItemT] | Unanswered:
            return await self.get_page(path, query, item, number=len(before) + 1)

        pages = await self.session.read_pages(path, read_next, explain_contradiction)
        if isinstance(pages, Unanswered):
            return pages
        return tuple(item for page in pages for item in page.items)

    async def get_page(
        self, path: str, query: Mapping[str, str], item: type[ItemT], *, number: int = 1
    ) -> Page[ItemT] | Unanswered:
        """Return one page of a list."""
        numbers = {"page": str(number), "per_page": str(PER_PAGE)}
        return await self._http.get(
            path,
            {**query, **numbers},
            self._recording(lambda response: read_page(response, path.strip("/"), item)),
        )

    async def get_some(
        self, path: str, ids: Iterable[int], item: type[ItemT], *, deadline: float
    ) -> tuple[ItemT, ...] | Unanswered:
        """Return the objects with these ids, at most a page of them; a missing one is left out."""
        query = [("id", str(number)) for number in ids]
        page = await self._http.get(
            path,
            [*query, ("per_page", str(PER_PAGE))],
            self._recording(lambda response: read_page(response, path.strip("/"), item)),
            deadline=deadline,
        )
        return page if isinstance(page, Unanswered) else page.items

    async def write(
        self, method: str, path: str, body: bytes | None, read: ReadResponse[AnswerT], *, deadline: float
    ) -> AnswerT | WriteRejection | Unanswered:
        """Send a request once; see `HttpReader.write`."""
        return await self._http.write(method, path, body, self._recording(read), deadline=deadline)

    def _recording(self, read: ReadResponse[AnswerT]) -> ReadResponse[AnswerT]:
        def record_and_read(response: HttpResponse) -> AnswerT:
            self._record_rate_limit(response)
            return read(response)

        return record_and_read

    async def _authorize(self) -> Mapping[str, str] | Unanswered:
        token = self.session.read_credential()
        return token if isinstance(token, Unanswered) else {"Authorization": f"Bearer {token}"}

    def _record_rate_limit(self, response: HttpResponse) -> None:
        now = asyncio.get_running_loop().time()
        reported = read_rate_limit(response, unix_time=self.session.options.now().timestamp())
        if reported is not None:
            self.session.budget.record_rate_limit(reported[0], full_in_seconds=reported[1], now=now)
