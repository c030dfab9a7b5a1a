"""Reads and writes pages of claims as ConfigMaps, and patches Nodes."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, Protocol

from libs.common.contract.node import Node, ObjectMeta
from libs.common.contract.services import CLAIM_PAGES_NAMESPACE
from libs.common.kube.objects import ConfigMap, Page
from services.ipam.core.pages import NAME_PREFIX, StoredPage

LABELS: Final = {
    "app.kubernetes.io/managed-by": "talos-ccm",
    "app.kubernetes.io/component": "pod-cidrs",
}
_MAX_CONCURRENT_WRITES: Final = 16  # the labeler needs connections too if it runs in the same process


class Kubernetes(Protocol):
    """The calls that ipam makes; implemented by `libs.common.kube.api.KubeApi`."""

    def list_config_maps(
        self, namespace: str, labels: Mapping[str, str]
    ) -> AsyncIterator[Page[ConfigMap]]: ...
    async def create_config_map(self, namespace: str, config_map: ConfigMap) -> ConfigMap: ...
    async def update_config_map(self, namespace: str, config_map: ConfigMap) -> ConfigMap: ...
    def list_nodes(self) -> AsyncIterator[Page[Node]]: ...
    async def patch_node(self, name: str, json_patch: Sequence[dict[str, Any]], /) -> Node: ...


class KubernetesClaims:
    """Implements `allocator.ClaimsApi` with the Kubernetes API."""

    def __init__(self, kube: Kubernetes) -> None:
        self._kube = kube
        self._write_slots = asyncio.Semaphore(_MAX_CONCURRENT_WRITES)

    async def list_pages(self) -> Sequence[StoredPage]:
        """List all pages by their names: a page that lost its labels counts, too. Raises KubeError."""
        return [
            _to_stored_page(found)
            async for page in self._kube.list_config_maps(CLAIM_PAGES_NAMESPACE, {})
            for found in page.items
            if found.metadata.name.startswith(NAME_PREFIX)
        ]

    async def write_page(self, page: StoredPage) -> str:
        """Create or replace a page; return its new resourceVersion. Raises KubeError."""
        metadata = ObjectMeta(name=page.name, resource_version=page.resource_version, labels=LABELS)
        config_map = ConfigMap(metadata=metadata, data=dict(page.data))
        write = self._kube.update_config_map if page.resource_version else self._kube.create_config_map
        return (await write(CLAIM_PAGES_NAMESPACE, config_map)).metadata.resource_version

    async def patch_node(self, name: str, json_patch: Sequence[dict[str, Any]], /) -> Node:
        """Patch a Node, as soon as a write slot is free. Raises KubeError."""
        async with self._write_slots:
            return await self._kube.patch_node(name, json_patch)

    async def list_nodes(self) -> Sequence[Node]:
        """List all Nodes. Raises KubeError."""
        return [node async for page in self._kube.list_nodes() for node in page.items]


def _to_stored_page(config_map: ConfigMap) -> StoredPage:
    metadata = config_map.metadata
    return StoredPage(
        name=metadata.name,
        resource_version=metadata.resource_version,
        data=config_map.data,
        created=metadata.creation_timestamp,
    )
