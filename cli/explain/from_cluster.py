"""Gathers what csr would know of a request: from Kubernetes and Talos, with the caller's own credentials."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from cli.asking import ask, node_name_at
from cli.cluster import CannotAsk, gathered, listed
from cli.credentials import NoAccess, kubernetes, talos
from cli.explain.evidence import Evidence, Look, claimants, contested
from cli.explain.filed import Filed, newest
from cli.nearest import or_meant
from libs.common.kube_api.api import SIGNING_REQUESTS, KubeApi
from libs.common.kube_api.errors import KubeError
from libs.common.kube_api.objects import Resource, UnreadableObject
from libs.common.machine import MachineFault
from libs.common.node import Node, trim_node
from services.csr.api_endpoint import ApiEndpoint
from services.csr.request_checks import why_ignored
from services.metadata.contested_addresses import MAX_DIALLED
from services.metadata.talos_api.api import MachineUnavailable, TalosApi

_NETWORKS_SECONDS: Final = 5.0
_ALL: Final = Resource(plural=SIGNING_REQUESTS.plural, path=SIGNING_REQUESTS.path, item=Filed)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Which request, and by which way to ask."""

    name: str
    of_node: bool = False  # it is the name of a node, whose newest request is meant
    kubeconfig: Path | None = None
    context: str = ""
    talosconfig: Path | None = None
    talos_endpoints: str = ""
    without_talos: bool = False
    all_machines: bool = False


def gather(source: Source) -> Evidence:
    """Only reads: lists from Kubernetes, and looks at machines as metadata's. Raises CannotAsk."""
    return gathered(_gather(source))


async def _gather(source: Source) -> Evidence:
    kube = kubernetes(source.kubeconfig, source.context, user_agent="talos-ccm-explain")
    try:
        evidence = await _of_kubernetes(kube, source)
    finally:
        await kube.close()
    if source.without_talos or why_ignored(evidence.filed.request) or evidence.node is None:
        return evidence
    try:
        machines = talos(source.talosconfig, source.talos_endpoints)
    except NoAccess as error:
        return msgspec.structs.replace(evidence, no_talos=str(error))
    try:
        return await _of_machines(machines, evidence, all_machines=source.all_machines)
    finally:
        await machines.close()


async def _of_kubernetes(kube: KubeApi, source: Source) -> Evidence:
    query = dict(SIGNING_REQUESTS.query)
    if source.of_node:
        everybodys = await _requests(kube, query)
        requests = _of_node(everybodys, source.name)
        filed = newest(requests)
        if filed is None:
            name = source.name
            meant = or_meant(name, (one.request.node_name for one in everybodys))
            raise CannotAsk(
                f"Kubernetes holds no request for a serving certificate of node {name}{meant} It keeps "
                "a decided one for an hour. Does the kubelet ask at all? (rotate-server-certificates)"
            )
    else:
        selected = await _requests(kube, {"fieldSelector": f"metadata.name={source.name}"})
        found = [one for one in selected if one.name == source.name]  # NAME may be more than a name
        if not found:
            raise CannotAsk(
                f"there is no CertificateSigningRequest {source.name}: Kubernetes removes a decided one "
                "after an hour. With --node, NAME is a node, whose newest request is explained"
            )
        filed = found[0]
        ours = not why_ignored(filed.request)
        requests = _of_node(await _requests(kube, query), filed.request.node_name) if ours else []
    return Evidence(
        filed=filed,
        requests=tuple(requests),
        nodes=tuple([trim_node(node) async for page in kube.list_nodes() for node in page.items]),
        without_talos=source.without_talos,
        endpoint=await _endpoint(kube),
        at=datetime.now(UTC),
    )


async def _endpoint(kube: KubeApi) -> ApiEndpoint:
    try:
        return ApiEndpoint(identities=(await kube.fetch_server_identity(),))
    except KubeError as error:
        return ApiEndpoint(fault=error.message)


async def _requests(kube: KubeApi, query: dict[str, str]) -> list[Filed]:
    return await listed(kube, msgspec.structs.replace(_ALL, query=query), _refuse)


def _of_node(requests: Iterable[Filed], name: str) -> list[Filed]:
    return [one for one in requests if one.request.node_name == name]


async def _of_machines(machines: TalosApi, evidence: Evidence, *, all_machines: bool) -> Evidence:
    """First its own and those of all that claim the same, then the addresses that are contested by that."""
    nodes = {node.name: node for node in evidence.nodes}
    own = evidence.filed.request.node_name
    names = nodes.keys() if all_machines else {own, *claimants(evidence)}
    # A Node without node IPs is none of ours: metadata asks nobody about it, and says nothing.
    asked = [nodes[name] for name in sorted(names) if name == own or nodes[name].provided_node_ip]
    looks, networks = await asyncio.gather(
        _looks(machines, asked, evidence.nodes), _service_networks(machines)
    )
    evidence = msgspec.structs.replace(evidence, looks=looks, service_networks=networks)
    addresses = tuple(contested(evidence))[:MAX_DIALLED]
    found = await asyncio.gather(*(node_name_at(machines, address) for address in addresses))
    answered = tuple(ip for ip, name in zip(addresses, found, strict=True) if name == own)
    return msgspec.structs.replace(evidence, answered_at=answered)


async def _service_networks(machines: TalosApi) -> tuple[str, ...] | None:
    try:
        networks = await machines.fetch_cluster_networks(deadline_seconds=_NETWORKS_SECONDS)
    except MachineUnavailable:
        return None
    return networks.service_cidrs or None


async def _looks(machines: TalosApi, asked: Sequence[Node], nodes: Sequence[Node]) -> dict[str, Look]:
    seen = await asyncio.gather(*(ask(machines, node, nodes) for node in asked))
    return {
        node.name: look if isinstance(look, MachineFault) else look.facts
        for node, look in zip(asked, seen, strict=True)
    }


def _refuse(unreadable: UnreadableObject) -> None:
    # A list that lacks one of them might lack the very one that supersedes it.
    raise CannotAsk(f"{unreadable.resource} {unreadable.name!r} cannot be read: {unreadable.reason}")
