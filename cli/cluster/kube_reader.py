"""Reads objects that the services never read; a rejected request returns the reason as a value."""

from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, Generic, TypeVar

import msgspec

from cli.cluster.unavailable import AbsentObject, RemoteClock, Unavailable
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Forbidden, KubeError, NotFound
from libs.common.kube.objects import decode_answer
from libs.common.kube.request import Request

T = TypeVar("T")
_PAGE: Final = 500


class _ListMeta(msgspec.Struct, frozen=True):
    token: str = msgspec.field(name="continue", default="")


class _ListResponse(msgspec.Struct, Generic[T], frozen=True):
    items: tuple[T, ...] | None
    metadata: _ListMeta = _ListMeta()


class KubeReader:
    """A client of one API server with the caller's credentials."""

    def __init__(self, kube: KubeApi) -> None:
        self.kube = kube

    async def list_all(
        self, path: str, kind: type[T], query: Mapping[str, str] | None = None
    ) -> tuple[T, ...]:
        """Return all objects of a collection. Raises KubeError."""
        found: list[T] = []
        token = ""
        while True:
            said = {**(query or {}), "limit": str(_PAGE), **({"continue": token} if token else {})}
            request = Request(verb="list", resource=path.rpartition("/")[2], path=path, query=said)
            page = decode_answer(await self.kube.transport.call(request), _ListResponse[kind], request)  # type: ignore[valid-type]
            found += page.items or ()
            token = page.metadata.token
            if not token:
                return tuple(found)

    async def get_bytes(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        seconds: float | None = None,
        most_bytes: int | None = None,
    ) -> bytes:
        """Return the body of an object or of a proxied server. Raises KubeError."""
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

    async def get_object(self, path: str, kind: type[T]) -> T:
        """Return one object. Raises KubeError."""
        return decode_answer(await self.get_bytes(path), kind, path)

    async def create_review(self, path: str, document: dict[str, Any], kind: type[T]) -> T:
        """Create a review, which the API server answers and does not store. Raises KubeError."""
        resource = path.rpartition("/")[2]
        body = msgspec.json.encode(document)
        request = Request(verb="create", resource=resource, method="POST", path=path, body=body)
        return decode_answer(await self.kube.transport.call(request), kind, request)

    @asynccontextmanager
    async def with_connections(self, connections: int) -> "AsyncIterator[KubeReader]":
        """Return a reader with this many connections of its own, so that parallel requests do not wait."""
        kube = self.kube.with_own_connections(connections=connections)
        try:
            yield KubeReader(kube)
        finally:
            await kube.close()

    async def read_clock(self) -> RemoteClock | Unavailable:
        """Return the API server's clock, by the Date header of a response that every caller may read."""
        asked = datetime.now(UTC)
        try:
            await self.get_bytes("/version", seconds=5.0)
        except KubeError as error:
            return Unavailable(reason=str(error))
        answered = datetime.now(UTC)
        try:
            said = parsedate_to_datetime(self.kube.transport.server_date).astimezone(UTC)
        except ValueError:
            return Unavailable(reason="its responses have no date")
        return RemoteClock(
            earliest=said, latest=said + timedelta(seconds=1), requested_at=asked, responded_at=answered
        )


async def get_or_unavailable(request: Awaitable[T], right: str) -> T | Unavailable:
    """Return the result, or why it is unavailable. `right` is the permission as in `kubectl auth can-i`."""
    try:
        return await request
    except Forbidden:
        return Unavailable(reason=f"this requires permission to {right}", required_permission=right)
    except KubeError as error:
        return Unavailable(reason=str(error))


async def get_or_not_found(request: Awaitable[T], right: str) -> T | AbsentObject | Unavailable:
    """Return the result, AbsentObject if the object does not exist, or why it is unavailable."""

    async def answer() -> T | AbsentObject:
        try:
            return await request
        except NotFound:
            return AbsentObject()

    return await get_or_unavailable(answer(), right)
