"""Gathers how the flow stands: from Kubernetes by the caller's own credentials, from NATS by the reader's."""

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec

from cli.cluster import gathered, listed
from cli.credentials import kubernetes
from cli.exec.pods import pods_of
from cli.inside.asking import FlowSource, ask, certificates_of
from cli.inside.seen import Object
from cli.leases import UnknownLease, read_lease
from cli.server_clock import ahead
from cli.status.flow_seen import ClaimsSeen, Evidence, LeaseSeen, Untold
from cli.status.from_cluster import claim_pages
from libs.common.kube_api.api import SIGNING_REQUESTS, KubeApi
from libs.common.kube_api.errors import KubeError
from libs.common.kube_api.pods import Pod
from libs.common.node import Node
from libs.common.signing_request import SigningRequest
from services.ipam.pages import StoredPage

_ASKED: Final = 20  # Nodes, and requests, of which the last words are read
T = TypeVar("T")


class Source(FlowSource, frozen=True, kw_only=True):
    """By which way to ask."""

    lease_name: str = ""  # "" = as the watcher's workload is told, as for the next
    lease_namespace: str = ""


def gather_flow(source: Source) -> Evidence:
    """Only reads. Raises CannotAsk where there is nobody to ask, or Nodes may not be listed."""
    return gathered(_gather(source))


async def _gather(source: Source) -> Evidence:
    kube = kubernetes(source.kubeconfig, source.context, user_agent="talos-ccm-status")
    try:
        before = await _told(claim_pages(kube))
        nodes, requests, lease, pods = await asyncio.gather(
            _nodes(kube), _told(_requests(kube)), _told(_lease(kube, source)), _told(_pods(kube, source))
        )
        after = await _told(claim_pages(kube))
        at = datetime.now(UTC) + ahead(kube)  # of what has been read: a pod may take long to answer
    finally:
        await kube.close()
    asked = _flow_source(source, nodes, requests)
    flow, certificates = await asyncio.gather(ask(asked), certificates_of(asked))
    return Evidence(
        at=at,
        namespace=source.namespace,
        nodes=tuple(nodes),
        requests=requests,
        lease=lease,
        pods=pods,
        claims=_claims(before, after),
        flow=flow,
        certificates=certificates,
    )


def _claims(
    before: Sequence[StoredPage] | Untold, after: Sequence[StoredPage] | Untold
) -> ClaimsSeen | Untold:
    if isinstance(before, Untold):
        return before
    return after if isinstance(after, Untold) else ClaimsSeen(before=tuple(before), pages=tuple(after))


async def _told(asking: Awaitable[T]) -> T | Untold:
    """A part that may be missing: who lacks a right is still told the rest."""
    try:
        return await asking
    except (KubeError, UnknownLease) as error:
        return Untold(str(error))


async def _nodes(kube: KubeApi) -> list[Node]:
    return [node async for page in kube.list_nodes() for node in page.items]


async def _requests(kube: KubeApi) -> tuple[SigningRequest, ...]:
    return tuple(await listed(kube, SIGNING_REQUESTS))


async def _lease(kube: KubeApi, source: Source) -> LeaseSeen | None:
    read = await read_lease(
        kube,
        namespace=source.namespace,
        release=source.release,
        name=source.lease_name,
        lease_namespace=source.lease_namespace,
    )
    lease = read.lease
    if lease is None:
        return None
    return LeaseSeen(
        holder=lease.holder,
        renewed_at=_moment(lease.spec.renew_time),
        duration_seconds=lease.spec.lease_duration_seconds or 0,
    )


async def _pods(kube: KubeApi, source: Source) -> tuple[Pod, ...]:
    return tuple(await pods_of(kube, source.namespace, source.release))


def _moment(text: str | None) -> datetime | None:
    """Of a Lease, which anybody may have written."""
    try:
        found = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return found if found is None or found.tzinfo else found.replace(tzinfo=UTC)


def _flow_source(
    source: Source, nodes: Sequence[Node], requests: Sequence[SigningRequest] | Untold
) -> FlowSource:
    """Of all that waits the oldest are asked about."""
    stuck = [node for node in nodes if not node.is_initialized]
    pending = [] if isinstance(requests, Untold) else [one for one in requests if one.is_pending]
    objects = [Object("node", node.name) for node in sorted(stuck, key=_age)[:_ASKED]]
    objects += [Object("csr", one.name) for one in sorted(pending, key=_age)[-_ASKED:]]
    return msgspec.structs.replace(source, objects=tuple(objects))


def _age(of: Node | SigningRequest) -> tuple[float, str]:
    created = of.metadata.creation_timestamp
    return (created.timestamp() if created else 0.0, of.name)
