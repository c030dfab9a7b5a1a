"""Gathers claims and Nodes from Kubernetes, with the caller's own credentials: lists, and writes nothing."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cli.credentials import open_kube_client
from cli.kube_listing import run_gathering
from libs.common.contract.node import Node
from libs.common.kube.api import KubeApi
from libs.common.service.service_spec import CLAIM_PAGES_NAMESPACE
from services.ipam.pages import NAME_PREFIX, StoredPage


class IpamQuery(msgspec.Struct, frozen=True, kw_only=True):
    """By which way to ask."""

    kubeconfig: Path | None = None
    context: str = ""


class IpamSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Pages, then all Nodes, then pages again.

    A claim of the first look whose Node the list lacks is that of a Node that is gone; what a Node of the
    list carries was claimed by the second look, if ipam gave it.
    """

    pages_before: tuple[StoredPage, ...]
    nodes: tuple[Node, ...]
    pages: tuple[StoredPage, ...]
    at: datetime


def gather_ipam(source: IpamQuery) -> IpamSnapshot:
    """Only lists. Raises ClusterUnavailable."""
    return run_gathering(_gather(source))


async def _gather(source: IpamQuery) -> IpamSnapshot:
    kube = open_kube_client(source.kubeconfig, source.context, user_agent="talos-ccm-status")
    try:
        before = await list_claim_pages(kube)
        nodes = [node async for page in kube.list_nodes() for node in page.items]
        pages = await list_claim_pages(kube)
    finally:
        await kube.close()
    return IpamSnapshot(
        pages_before=tuple(before), nodes=tuple(nodes), pages=tuple(pages), at=datetime.now(UTC)
    )


async def list_claim_pages(kube: KubeApi) -> Sequence[StoredPage]:
    """By their names and not by their labels, which somebody may have taken off."""
    return [
        StoredPage(
            name=found.metadata.name, resource_version=found.metadata.resource_version, data=found.data
        )
        async for page in kube.list_config_maps(CLAIM_PAGES_NAMESPACE, {})
        for found in page.items
        if found.metadata.name.startswith(NAME_PREFIX)
    ]
