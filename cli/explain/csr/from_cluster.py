"""Gathers the evidence that csr would use for a request, with the caller's credentials."""

import asyncio
from typing import Final

import msgspec

from cli.cluster.access import AccessError, open_kube_client, open_talos_client
from cli.cluster.installation import find_container
from cli.cluster.kube_objects import CertificateSigningRequest, find_newest
from cli.cluster.kube_reader import get_object, list_all, suggest_name
from cli.cluster.machine_events import make_unreachable
from cli.cluster.machine_query import fetch_node_name_at, query_machine
from cli.cluster.query import ObjectQuery
from cli.cluster.read_cluster import read_cluster, require
from cli.command_exit import CommandError
from cli.explain.csr.request_evidence import (
    RequestEvidence,
    find_claimants,
    list_contested_addresses,
)
from libs.common.cloud_config.model import CloudConfig
from libs.common.contract.controllers import CSR_APPROVAL
from libs.common.contract.node import trim_node
from libs.common.contract.services import CSR, METADATA
from libs.common.kube.api import SIGNING_REQUESTS, KubeApi, raise_unreadable
from libs.common.kube.errors import KubeError, NotFound
from libs.common.kube.objects import SERVICE_CIDRS
from libs.common.kube.request import path_segment
from libs.talos.api import MachineUnavailable, TalosApi
from services.csr.core.decision import ApiEndpoint
from services.csr.core.request_checks import find_ignore
from services.metadata.machines.query_machine import QueryFailure

_NETWORKS_SECONDS: Final = 5.0


class RequestQuery(ObjectQuery, frozen=True, kw_only=True):
    """The request to explain."""

    of_node: bool = False  # `name` is a node; its newest request is explained
    all_machines: bool = False


async def gather_request_evidence(source: RequestQuery, file: CloudConfig | None) -> RequestEvidence:
    """Return the evidence; reads only: lists from Kubernetes, and queries machines as metadata does.

    `file` is the --cloud-config; None = that of the chart's ConfigMap. Raises CommandError.
    """
    async with open_kube_client(source, command="explain") as kube:
        evidence = await _gather_kubernetes(kube, source, file)
    if evidence.without_talos or find_ignore(evidence.csr.signing_request) or evidence.node is None:
        return evidence
    try:
        async with open_talos_client(source) as machines:
            return await _gather_machines(machines, evidence, all_machines=source.all_machines)
    except AccessError as error:
        return msgspec.structs.replace(evidence, talos_problem=str(error))


async def _gather_kubernetes(
    kube: KubeApi, source: RequestQuery, file: CloudConfig | None
) -> RequestEvidence:
    snapshot = await read_cluster(kube, source, "nodes", "requests", "pods", "config")
    requests = require(snapshot.requests)
    filed = find_newest(one for one in requests if one.node_name == source.name)
    if not source.of_node:
        path = f"{SIGNING_REQUESTS.path}/{path_segment(source.name)}"
        try:
            filed = await get_object(kube, path, CertificateSigningRequest)
        except NotFound:
            raise CommandError(
                f"CertificateSigningRequest {source.name} not found; Kubernetes deletes a decided request "
                "after an hour. To explain the newest request of a node, add --node"
            ) from None
    elif filed is None:
        meant = suggest_name(source.name, (one.node_name for one in requests))
        raise CommandError(
            f"Kubernetes has no request for a serving certificate of node {source.name}{meant} "
            "Kubernetes deletes a decided request after an hour. Check that the kubelet requests "
            "certificates (rotate-server-certificates)"
        )
    metadata = find_container(snapshot.pods, METADATA)
    return RequestEvidence(
        csr=filed,
        requests=tuple(one for one in requests if one.node_name == filed.node_name),
        nodes=tuple(map(trim_node, require(snapshot.nodes))),
        without_talos=source.without_talos or bool(metadata and metadata.is_switched_on("without-talos")),
        endpoint=await _read_endpoint(kube),
        service_cidrs=await _list_service_cidrs(kube),
        at=snapshot.at,
        ownership=(file or snapshot.cloud_config).ownership.for_controller(CSR_APPROVAL),
        container=find_container(snapshot.pods, CSR),
        unavailable_parts=snapshot.unavailable_parts,
    )


async def _list_service_cidrs(kube: KubeApi) -> tuple[str, ...] | None:
    """Return the ranges of all ServiceCIDR objects; None if they cannot be listed."""
    try:
        found = await list_all(kube, SERVICE_CIDRS, raise_unreadable)
    except NotFound:
        return ()
    except KubeError:
        return None
    return tuple(cidr for item in found for cidr in item.spec.cidrs)


async def _read_endpoint(kube: KubeApi) -> ApiEndpoint:
    try:
        return ApiEndpoint(identities=(await kube.fetch_server_identity(),))
    except KubeError as error:
        return ApiEndpoint(fault=error.message)


async def _gather_machines(
    machines: TalosApi, evidence: RequestEvidence, *, all_machines: bool
) -> RequestEvidence:
    """Query the node's machine and those of Nodes with the same claims, then dial the contested addresses."""
    nodes = {node.name: node for node in evidence.nodes}
    own = evidence.csr.node_name
    names = nodes.keys() if all_machines else {own, *find_claimants(evidence)}
    # metadata does not query machines of Nodes without node IPs, so they attest nothing.
    asked = [nodes[name] for name in sorted(names) if name == own or nodes[name].provided_node_ip]
    queries = (query_machine(machines, node, evidence.nodes, evidence.at) for node in asked)
    networks, answers = await asyncio.gather(_query_service_networks(machines), asyncio.gather(*queries))
    reports = {
        node.name: make_unreachable(node, answer.fault, evidence.at)
        if isinstance(answer, QueryFailure)
        else answer
        for node, answer in zip(asked, answers, strict=True)
    }
    evidence = msgspec.structs.replace(evidence, reports=reports, service_networks=networks)
    addresses = list_contested_addresses(evidence)
    found = await asyncio.gather(*(fetch_node_name_at(machines, address) for address in addresses))
    answered = tuple(ip for ip, name in zip(addresses, found, strict=True) if name == own)
    return msgspec.structs.replace(evidence, answered_at=answered)


async def _query_service_networks(machines: TalosApi) -> tuple[str, ...] | None:
    try:
        networks = await machines.fetch_cluster_networks(deadline_seconds=_NETWORKS_SECONDS)
    except MachineUnavailable:
        return None
    return networks.service_cidrs or None
