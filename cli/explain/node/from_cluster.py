"""Gathers the evidence about a Node from Kubernetes, Talos and the services, as the caller."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cli.cluster.credentials import AccessError, open_kube_client, open_talos_client
from cli.cluster.described_node import DescribedNode
from cli.cluster.kube_listing import ClusterUnavailable, list_managed_nodes, run_gathering
from cli.cluster.machine_query import describe_node, find_replacement_machines, query_machine
from cli.cluster.server_clock import measure_clock_offset
from cli.command_exit import CommandError
from cli.explain.node.context_from_cluster import gather_context
from cli.explain.node.node_context import NodeContext
from cli.explain.node.node_evidence import (
    MachineResult,
    NodeEvidence,
    choose_machine_result,
    fall_back_to_bus,
)
from cli.inside import flow_client
from cli.inside.flow_query import LeaseQuery
from cli.inside.flow_snapshot import FlowObject, FlowSnapshot, FlowUnavailable
from cli.name_suggestion import suggest_name
from cli.render.compiled_config import CompiledConfig, parse_config
from libs.common.cloud_config.fact_fields import TalosResource, required_resources
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import PROVIDED_NODE_IP_ANNOTATION, Node, trim_node
from libs.talos.api import TalosApi
from services.metadata.machines.machine_replacement import Inconclusive
from services.metadata.machines.query_machine import QueryResult


class NodeQuery(LeaseQuery, frozen=True, kw_only=True):
    """The Node to explain, with credentials and addresses."""

    name: str
    talosconfig: Path | None = None
    talos_endpoints: str = ""
    without_talos: bool = False


def gather_node_evidence(source: NodeQuery, file: CompiledConfig | None) -> NodeEvidence:
    """Read the evidence. The rules of `file` choose the resources. Raises ClusterUnavailable."""
    return run_gathering(_gather(source, file))


async def _gather(source: NodeQuery, file: CompiledConfig | None) -> NodeEvidence:
    flow, evidence = await asyncio.gather(_query_flow(source), _gather_kubernetes(source, file))
    evidence = msgspec.structs.replace(evidence, flow=flow)
    if not evidence.node.provided_node_ip:
        text = (
            f"the Node has no annotation {PROVIDED_NODE_IP_ANNOTATION}, so metadata does not query its "
            "machine either"
        )
        return msgspec.structs.replace(evidence, not_queried_reason=text, is_query_skipped=True)
    if source.without_talos:
        return msgspec.structs.replace(
            evidence, not_queried_reason="not queried: --without-talos", is_query_skipped=True
        )
    try:
        machines = open_talos_client(source.talosconfig, source.talos_endpoints, with_stage=True)
    except AccessError as error:
        return fall_back_to_bus(msgspec.structs.replace(evidence, not_queried_reason=str(error)))
    try:
        return choose_machine_result(await _gather_machine(machines, evidence))
    finally:
        await machines.close()


async def _gather_kubernetes(source: NodeQuery, file: CompiledConfig | None) -> NodeEvidence:
    kube = open_kube_client(source.kubeconfig, source.context, user_agent="talos-ccm-explain")
    try:
        nodes, managed_fields = await list_managed_nodes(kube)
        node = next((node for node in nodes if node.name == source.name), None)
        if node is None:
            meant = suggest_name(source.name, (node.name for node in nodes))
            raise ClusterUnavailable(
                f"Node {source.name} not found{meant} If its machine exists, the kubelet's log says why it "
                "has not registered (talosctl logs kubelet)"
            )
        around = await gather_context(kube, node, source)
        at = datetime.now(UTC) + measure_clock_offset(kube)
    finally:
        await kube.close()
    mistakes = ""
    if file is None and around.file:
        file, mistakes = _compile_config(around)
    return NodeEvidence(
        node=trim_node(node),
        nodes=tuple(map(trim_node, nodes)),
        managed_fields=managed_fields[node.name],
        config_file=file,
        file_mistakes=mistakes,
        context=around,
        namespace=source.namespace,
        at=at,
    )


def _compile_config(around: NodeContext) -> tuple[CompiledConfig | None, str]:
    """Compile the file of the chart's ConfigMap; return the config, or None and its mistakes."""
    try:
        return parse_config(around.file, around.file_source), ""
    except CommandError as error:
        first, *others = str(error).splitlines()
        return None, first + (f" (and {len(others)} more)" if others else "")


async def _query_flow(source: NodeQuery) -> FlowSnapshot | FlowUnavailable:
    return await flow_client.query_flow(
        msgspec.structs.replace(source, objects=(FlowObject("node", source.name),))
    )


async def _gather_machine(machines: TalosApi, evidence: NodeEvidence) -> NodeEvidence:
    """Query the machine; query those of other Nodes only if another machine answered in its place."""
    resources = (
        required_resources(evidence.config_file.document.rules) if evidence.config_file else frozenset()
    )
    prefer_ipv6 = evidence.config.prefer_ipv6
    seen = await query_machine(
        machines, evidence.node, evidence.nodes, prefer_ipv6=prefer_ipv6, resources=resources
    )
    if isinstance(seen, QueryResult):
        return msgspec.structs.replace(
            evidence, machine_result=_query_described_node(evidence.node, seen, evidence.nodes, resources)
        )
    evidence = msgspec.structs.replace(evidence, machine_result=seen.fault)
    return await _gather_other_machines(machines, evidence, seen.rejected) if seen.rejected else evidence


async def _gather_other_machines(
    machines: TalosApi, evidence: NodeEvidence, answered: tuple[MachineFacts, ...]
) -> NodeEvidence:
    node, nodes = evidence.node, evidence.nodes
    asked = [other for other in nodes if other.name != node.name and other.provided_node_ip]
    answers = await asyncio.gather(*(query_machine(machines, other, nodes) for other in asked))
    found = (
        _query_described_node(other, seen, nodes, frozenset())
        for other, seen in zip(asked, answers, strict=True)
        if isinstance(seen, QueryResult)
    )
    others = tuple(each for each in found if isinstance(each, DescribedNode))
    reached = {other.name for other in others}
    there = await find_replacement_machines(machines, node, answered, reached)
    if isinstance(there, Inconclusive):
        return msgspec.structs.replace(evidence, other_machines=others, inconclusive_reason=there.reason)
    return msgspec.structs.replace(evidence, other_machines=others, answered_by=there)


def _query_described_node(
    node: Node, seen: QueryResult, nodes: Sequence[Node], resources: frozenset[TalosResource]
) -> MachineResult:
    if seen.inventory.faults:
        return next(iter(seen.inventory.faults.values()))  # without this resource no rule can be evaluated
    return describe_node(node, seen, nodes, resources)
