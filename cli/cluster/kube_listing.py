"""Lists Kubernetes objects completely and reports why a cluster is unavailable."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

import msgspec

from cli.cluster.credentials import AccessError
from cli.cluster.kept_keys import ManagedNode
from cli.command_exit import CommandError
from libs.common.contract.node import Node
from libs.common.kube.api import NODES, KubeApi, raise_unreadable
from libs.common.kube.errors import KubeError
from libs.common.kube.objects import Item, Resource, UnreadableObject

_MANAGED_NODES: Final[Resource[ManagedNode]] = Resource(
    plural=NODES.plural, path=NODES.path, item=ManagedNode
)

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


async def list_managed_nodes(kube: KubeApi) -> tuple[list[Node], Mapping[str, msgspec.Raw]]:
    """Return all Nodes, and the managedFields of each by its name. Raises KubeError."""
    found = await list_all(kube, _MANAGED_NODES, raise_unreadable)
    managed_fields = {each.name: each.metadata.managed_fields for each in found}
    return [each.without_managers() for each in found], managed_fields


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
