"""How commands ask Kubernetes: lists to their end, and what is said where it does not tell."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cli.credentials import NoAccess
from libs.common.kube_api.api import KubeApi
from libs.common.kube_api.errors import KubeError
from libs.common.kube_api.objects import Item, Resource, UnreadableObject

T = TypeVar("T")


class CannotAsk(Exception):
    """There is nobody to ask, or nothing to tell of; says why, and what to do about it."""


def gathered(gathering: Coroutine[Any, Any, T]) -> T:
    """What it gives. Raises CannotAsk."""
    try:
        return asyncio.run(gathering)
    except NoAccess as error:
        raise CannotAsk(str(error)) from error
    except KubeError as error:
        raise CannotAsk(f"the Kubernetes API does not tell: {error}") from error


def pass_over(unreadable: UnreadableObject) -> None:
    """One that cannot be read is none to tell of; what it lacks, others say."""


async def listed(
    kube: KubeApi, resource: Resource[Item], on_unreadable: Callable[[UnreadableObject], None] = pass_over
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
