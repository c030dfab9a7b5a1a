"""Reads Kubernetes with the caller's credentials; a rejected request returns the reason as a value."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

from cli.cluster.unavailable import RemoteClock, Unavailable
from cli.command_exit import CommandError
from libs.common.cloud_config import findings
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Forbidden, KubeError, NotFound
from libs.common.kube.objects import Item, Resource, UnreadableObject, decode_answer
from libs.common.kube.request import Request

_CLOCK_SECONDS: Final = 5.0
T = TypeVar("T")


def run_gathering(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine and return its result. Raises CommandError."""
    try:
        return asyncio.run(coroutine)
    except KubeError as error:
        raise CommandError(f"the Kubernetes API request failed: {error}") from error


@asynccontextmanager
async def own_connections(kube: KubeApi, connections: int) -> AsyncIterator[KubeApi]:
    """Yield a client with this many connections of its own, so that a kubelet that hangs delays no other."""
    own = kube.with_own_connections(connections=connections)
    try:
        yield own
    finally:
        await own.close()


async def list_all(
    kube: KubeApi,
    resource: Resource[Item],
    on_unreadable: Callable[[UnreadableObject], None] = lambda _: None,  # other messages report it
) -> tuple[Item, ...]:
    """Return all objects, page by page. Raises KubeError."""
    items: list[Item] = []
    token = ""
    while True:
        page = await kube.list_page(resource, continue_token=token, on_unreadable=on_unreadable)
        items += page.items
        token = page.continue_token
        if not token:
            return tuple(items)


async def get_bytes(
    kube: KubeApi,
    path: str,
    query: Mapping[str, str] | None = None,
    *,
    seconds: float | None = None,
    most_bytes: int | None = None,
) -> bytes:
    """Return the body of an object or of a proxied server. Raises KubeError."""
    *_, resource, name = path.split("/")
    request = Request(
        verb="get", resource=resource, name=name, path=path, query=query or {}, max_bytes=most_bytes
    )
    return await kube.transport.call(request, deadline_seconds=seconds)


async def get_object(kube: KubeApi, path: str, kind: type[T]) -> T:
    """Return one object. Raises KubeError."""
    return decode_answer(await get_bytes(kube, path), kind, path)


async def read_clock(kube: KubeApi) -> RemoteClock | Unavailable:
    """Return the API server's clock, by the Date header of a response that every caller may read."""
    asked = datetime.now(UTC)
    try:
        await get_bytes(kube, "/version", seconds=_CLOCK_SECONDS)
    except KubeError as error:
        return Unavailable(reason=str(error))
    return read_last_date(kube, asked)


def read_last_date(kube: KubeApi, requested_at: datetime) -> RemoteClock | Unavailable:
    """Return the API server's clock, by the Date header of the last response since that time."""
    try:
        date = parsedate_to_datetime(kube.transport.server_date).astimezone(UTC)
    except ValueError:
        return Unavailable(reason="its responses have no date")
    return RemoteClock(
        earliest=date,
        latest=date + timedelta(seconds=1),
        requested_at=requested_at,
        responded_at=datetime.now(UTC),
    )


async def get_or_unavailable(request: Awaitable[T], right: str) -> T | Unavailable:
    """Return the result, or why it is unavailable. `right` is the permission as in `kubectl auth can-i`."""
    try:
        return await request
    except KubeError as error:
        is_forbidden = isinstance(error, Forbidden)
        return Unavailable(reason=str(error), required_permission=right if is_forbidden else "")


async def get_or_absent(request: Awaitable[T], right: str) -> T | Unavailable | None:
    """Return the result, None if the object does not exist, or why it is unavailable."""

    async def answer() -> T | None:
        try:
            return await request
        except NotFound:
            return None

    return await get_or_unavailable(answer(), right)


def suggest_name(name: str, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: "; did you mean web-1?", or a full stop."""
    bare = name.rpartition("/")[2]  # kubectl writes node/web-1
    return findings.suggest_name(bare, sorted(set(names))) or "."
