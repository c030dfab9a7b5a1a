"""Gathers claims and Nodes from Kubernetes, with the caller's own credentials: lists, and writes nothing."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cli.credentials import NoAccess, kubernetes
from libs.common.kube_api.api import KubeApi
from libs.common.kube_api.errors import KubeError
from libs.common.node import Node
from libs.common.wiring import PAGES_NAMESPACE
from services.ipam.pages import NAME_PREFIX, StoredPage


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """By which way to ask."""

    kubeconfig: Path | None = None
    context: str = ""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Pages, then all Nodes, then pages again.

    A claim of the first look whose Node the list lacks is that of a Node that is gone; what a Node of the
    list carries was claimed by the second look, if ipam gave it.
    """

    before: tuple[StoredPage, ...]
    nodes: tuple[Node, ...]
    pages: tuple[StoredPage, ...]
    at: datetime


class CannotAsk(Exception):
    """There is nothing to tell; says why, and what to do about it."""


def gather(source: Source) -> Seen:
    """Only lists. Raises CannotAsk."""
    try:
        return asyncio.run(_gather(source))
    except NoAccess as error:
        raise CannotAsk(str(error)) from error
    except KubeError as error:
        raise CannotAsk(f"the Kubernetes API does not tell: {error}") from error


async def _gather(source: Source) -> Seen:
    kube = kubernetes(source.kubeconfig, source.context, user_agent="talos-ccm-status")
    try:
        before = await claim_pages(kube)
        nodes = [node async for page in kube.list_nodes() for node in page.items]
        pages = await claim_pages(kube)
    finally:
        await kube.close()
    return Seen(before=tuple(before), nodes=tuple(nodes), pages=tuple(pages), at=datetime.now(UTC))


async def claim_pages(kube: KubeApi) -> Sequence[StoredPage]:
    """By their names and not by their labels, which somebody may have taken off."""
    return [
        StoredPage(
            name=found.metadata.name, resource_version=found.metadata.resource_version, data=found.data
        )
        async for page in kube.list_config_maps(PAGES_NAMESPACE, {})
        for found in page.items
        if found.metadata.name.startswith(NAME_PREFIX)
    ]
