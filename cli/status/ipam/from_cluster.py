"""Gathers claims and Nodes from Kubernetes with the caller's credentials; only lists."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cli.cluster.credentials import open_kube_client
from cli.cluster.kube_listing import list_nodes, run_gathering
from libs.common.contract.node import Node
from libs.common.contract.services import CLAIM_PAGES_NAMESPACE
from libs.common.kube.api import KubeApi
from services.ipam.pages import NAME_PREFIX, StoredPage


class IpamQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The credentials and the address for `status ipam`."""

    kubeconfig: Path | None = None
    context: str = ""


class IpamSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The pages, then all Nodes, then the pages again.

    If a claim is in `pages_before` and its Node is not listed, the Node is deleted. If ipam allocated a
    podCIDR of a listed Node, its claim is in `pages`.
    """

    pages_before: tuple[StoredPage, ...]
    nodes: tuple[Node, ...]
    pages: tuple[StoredPage, ...]
    at: datetime


def gather_ipam(source: IpamQuery) -> IpamSnapshot:
    """Return the snapshot; only lists. Raises ClusterUnavailable."""
    return run_gathering(_gather(source))


async def _gather(source: IpamQuery) -> IpamSnapshot:
    kube = open_kube_client(source.kubeconfig, source.context, user_agent="talos-ccm-status")
    try:
        before = await list_claim_pages(kube)
        nodes = await list_nodes(kube)
        pages = await list_claim_pages(kube)
    finally:
        await kube.close()
    return IpamSnapshot(
        pages_before=tuple(before), nodes=tuple(nodes), pages=tuple(pages), at=datetime.now(UTC)
    )


async def list_claim_pages(kube: KubeApi) -> Sequence[StoredPage]:
    """Return all pages, selected by name: another client may have removed their labels."""
    return [
        StoredPage(
            name=found.metadata.name, resource_version=found.metadata.resource_version, data=found.data
        )
        async for page in kube.list_config_maps(CLAIM_PAGES_NAMESPACE, {})
        for found in page.items
        if found.metadata.name.startswith(NAME_PREFIX)
    ]
