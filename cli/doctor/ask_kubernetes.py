"""Reads of objects that services never look at; whatever is refused comes back as a value with the reason."""

from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, Generic, TypeVar

import msgspec

from cli.doctor.seen import Absent, Moment, NotSeen
from libs.common.kube_api.api import KubeApi
from libs.common.kube_api.errors import Forbidden, KubeError, NotFound
from libs.common.kube_api.objects import decode_answer
from libs.common.kube_api.transport import Request

T = TypeVar("T")
_PAGE: Final = 500


class _ListMeta(msgspec.Struct, frozen=True):
    token: str = msgspec.field(name="continue", default="")


class _Listed(msgspec.Struct, Generic[T], frozen=True):
    items: tuple[T, ...] | None
    metadata: _ListMeta = _ListMeta()


class Ask:
    """One API server, asked as the caller."""

    def __init__(self, kube: KubeApi) -> None:
        self.kube = kube

    async def listed(self, path: str, kind: type[T], query: Mapping[str, str] | None = None) -> tuple[T, ...]:
        """All of a collection. Raises KubeError."""
        found: list[T] = []
        token = ""
        while True:
            said = {**(query or {}), "limit": str(_PAGE), **({"continue": token} if token else {})}
            request = Request(verb="list", resource=path.rpartition("/")[2], path=path, query=said)
            page = decode_answer(await self.kube.transport.call(request), _Listed[kind], request)  # type: ignore[valid-type]
            found += page.items or ()
            token = page.metadata.token
            if not token:
                return tuple(found)

    async def read(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        seconds: float | None = None,
        most_bytes: int | None = None,
    ) -> bytes:
        """One object, or what a server behind it says. Raises KubeError."""
        _, _, name = path.rpartition("/")
        request = Request(
            verb="get",
            resource=path.split("/")[-2],
            name=name,
            path=path,
            query=query or {},
            max_bytes=most_bytes,
        )
        return await self.kube.transport.call(request, deadline_seconds=seconds)

    async def got(self, path: str, kind: type[T]) -> T:
        """One object. Raises KubeError."""
        return decode_answer(await self.read(path), kind, path)

    async def review(self, path: str, document: dict[str, Any], kind: type[T]) -> T:
        """A question that is put as the creation of an object that nobody stores. Raises KubeError."""
        resource = path.rpartition("/")[2]
        body = msgspec.json.encode(document)
        request = Request(verb="create", resource=resource, method="POST", path=path, body=body)
        return decode_answer(await self.kube.transport.call(request), kind, request)

    @asynccontextmanager
    async def apart(self, connections: int) -> "AsyncIterator[Ask]":
        """The same over so many connections of its own: of those asked at once none waits for another."""
        kube = self.kube.with_own_connections(connections=connections)
        try:
            yield Ask(kube)
        finally:
            await kube.close()

    async def clock(self) -> Moment | NotSeen:
        """What time the API server has, by the header of an answer that everybody may read."""
        asked = datetime.now(UTC)
        try:
            await self.read("/version", seconds=5.0)
        except KubeError as error:
            return NotSeen(why=str(error))
        answered = datetime.now(UTC)
        try:
            said = parsedate_to_datetime(self.kube.transport.server_date).astimezone(UTC)
        except ValueError:
            return NotSeen(why="its answers bear no date")
        return Moment(said_from=said, said_until=said + timedelta(seconds=1), asked=asked, answered=answered)


async def or_not(asking: Awaitable[T], right: str) -> T | NotSeen:
    """The answer, or why there is none. `right` is what it takes, as `kubectl auth can-i` says it."""
    try:
        return await asking
    except Forbidden:
        return NotSeen(why=f"it takes the right to {right}", right=right)
    except KubeError as error:
        return NotSeen(why=str(error))


async def or_absent(asking: Awaitable[T], right: str) -> T | Absent | NotSeen:
    """The same of what may not be there."""

    async def answer() -> T | Absent:
        try:
            return await asking
        except NotFound:
            return Absent()

    return await or_not(answer(), right)
