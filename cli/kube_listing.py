"""How commands ask Kubernetes: lists to their end, and what is said where it does not tell."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cli.credentials import AccessError
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import KubeError
from libs.common.kube.objects import Item, Resource, UnreadableObject

T = TypeVar("T")


class ClusterUnavailable(Exception):
    """There is nobody to ask, or nothing to tell of; says why, and what to do about it."""


def run_gathering(coroutine: Coroutine[Any, Any, T]) -> T:
    """What it gives. Raises ClusterUnavailable."""
    try:
        return asyncio.run(coroutine)
    except AccessError as error:
        raise ClusterUnavailable(str(error)) from error
    except KubeError as error:
        raise ClusterUnavailable(f"the Kubernetes API does not tell: {error}") from error


def skip_unreadable(unreadable: UnreadableObject) -> None:
    """One that cannot be read is none to tell of; what it lacks, others say."""


async def list_all(
    kube: KubeApi,
    resource: Resource[Item],
    on_unreadable: Callable[[UnreadableObject], None] = skip_unreadable,
) -> list[Item]:
    """All of it, page by page. Raises KubeError."""
    items: list[Item] = []
    token = ""
    while True:
        page = await kube.list_page(resource, continue_token=token, on_unreadable=on_unreadable)
        items += page.items
        token = page.continue_token
        if not token:
            return items
