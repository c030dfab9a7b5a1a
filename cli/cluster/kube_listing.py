"""Lists Kubernetes objects completely and reports why a cluster is unavailable."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cli.cluster.credentials import AccessError
from cli.command_exit import CommandError
from libs.common.contract.node import Node
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import KubeError
from libs.common.kube.objects import Item, Resource, UnreadableObject

T = TypeVar("T")


class ClusterUnavailable(CommandError):
    """The cluster cannot be queried or has no matching object; the text gives reason and remedy."""


def run_gathering(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine and return its result. Raises ClusterUnavailable."""
    try:
        return asyncio.run(coroutine)
    except AccessError as error:
        raise ClusterUnavailable(str(error)) from error
    except KubeError as error:
        raise ClusterUnavailable(f"the Kubernetes API request failed: {error}") from error


def skip_unreadable(unreadable: UnreadableObject) -> None:
    """Ignore an unreadable object: other messages report it."""


async def list_nodes(kube: KubeApi) -> list[Node]:
    """Return all Nodes. Raises KubeError."""
    return [node async for page in kube.list_nodes() for node in page.items]


async def list_all(
    kube: KubeApi,
    resource: Resource[Item],
    on_unreadable: Callable[[UnreadableObject], None] = skip_unreadable,
) -> list[Item]:
    """Return all objects, page by page. Raises KubeError."""
    items: list[Item] = []
    token = ""
    while True:
        page = await kube.list_page(resource, continue_token=token, on_unreadable=on_unreadable)
        items += page.items
        token = page.continue_token
        if not token:
            return items
