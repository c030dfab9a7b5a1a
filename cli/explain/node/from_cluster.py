"""Gathers the evidence about a Node from Kubernetes, Talos and the services, as the caller."""

import asyncio

import msgspec

from cli.cluster.access import AccessError, open_kube_client, open_talos_client
from cli.cluster.kube_reader import get_or_unavailable, suggest_name
from cli.cluster.machine_query import find_replacement_machines, query_machine
from cli.cluster.pod_commands import query_flow
from cli.cluster.query import ObjectQuery
from cli.cluster.read_cluster import list_events, read_cluster, require
from cli.cluster.snapshot import ConfigFile
from cli.command_exit import CommandError
from cli.explain.node.node_evidence import (
    NodeEvidence,
    choose_report,
    fall_back_to_bus,
    report_fault,
)
from cli.inside.flow_snapshot import FlowObject
from cli.render.compiled_config import CompiledConfig, parse_config
from libs.common.cloud_config.fact_fields import required_resources
from libs.common.contract.events import NodeEnriched
from libs.common.contract.node import NETWORK_UNAVAILABLE, PROVIDED_NODE_IP_ANNOTATION, trim_node
from libs.common.kube.api import KubeApi
from libs.common.kube.events import node_reference
from libs.talos.api import TalosApi
from services.metadata.core.machine_replacement import Inconclusive
from services.metadata.machines.query_machine import QueryFailure


async def gather_node_evidence(source: ObjectQuery, file: CompiledConfig | None) -> NodeEvidence:
    """Read the evidence. The rules of `file` choose the resources. Raises CommandError."""
    async with open_kube_client(source, command="explain") as kube:
        evidence = await _gather_kubernetes(kube, source, file)
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
        async with open_talos_client(source, with_stage=True) as machines:
            return choose_report(await _gather_machine(machines, evidence))
    except AccessError as error:
        return fall_back_to_bus(msgspec.structs.replace(evidence, not_queried_reason=str(error)))


async def _gather_kubernetes(kube: KubeApi, source: ObjectQuery, file: CompiledConfig | None) -> NodeEvidence:
    snapshot = await read_cluster(kube, source, "nodes", "requests", "lease", "pods", "events", "config")
    nodes = require(snapshot.nodes)
    node = next((node for node in nodes if node.name == source.name), None)
    if node is None:
        meant = suggest_name(source.name, (node.name for node in nodes))
        raise CommandError(
            f"Node {source.name} not found{meant} If its machine exists, the kubelet's log says why it "
            "has not registered (talosctl logs kubelet)"
        )
    about = node_reference(node.name, node.uid)
    events, flow = await asyncio.gather(
        get_or_unavailable(list_events(kube, about), "list events --namespace default"),
        query_flow(kube, source, snapshot.pods, (FlowObject("node", node.name),)),
    )
    mistakes = ""
    if file is None and isinstance(snapshot.config, ConfigFile):
        file, mistakes = _compile_config(snapshot.config)
    trimmed = tuple(map(trim_node, nodes))
    return NodeEvidence(
        node=trim_node(node, more_conditions=frozenset({NETWORK_UNAVAILABLE})),
        snapshot=msgspec.structs.replace(snapshot, nodes=trimmed, flow=flow),
        node_events=events,
        config_file=file,
        file_mistakes=mistakes,
    )


def _compile_config(file: ConfigFile) -> tuple[CompiledConfig | None, str]:
    """Compile the file of the chart's ConfigMap; return the config, or None and its mistakes."""
    try:
        return parse_config(file.text, file.source), ""
    except CommandError as error:
        first, *others = str(error).splitlines()
        return None, first + (f" (and {len(others)} more)" if others else "")


async def _gather_machine(machines: TalosApi, evidence: NodeEvidence) -> NodeEvidence:
    """Query the machine; query those of other Nodes only if another machine answered in its place."""
    resources = (
        required_resources(evidence.config_file.document.rules) if evidence.config_file else frozenset()
    )
    prefer_ipv6 = evidence.config.prefer_ipv6
    seen = await query_machine(
        machines, evidence.node, evidence.nodes, evidence.at, prefer_ipv6=prefer_ipv6, resources=resources
    )
    if isinstance(seen, NodeEnriched):
        return msgspec.structs.replace(evidence, report=seen)
    return await _gather_other_machines(machines, evidence, seen)


async def _gather_other_machines(
    machines: TalosApi, evidence: NodeEvidence, failed: QueryFailure
) -> NodeEvidence:
    if not failed.rejected:
        return report_fault(evidence, failed.fault)
    node, nodes = evidence.node, evidence.nodes
    asked = [other for other in nodes if other.name != node.name and other.provided_node_ip]
    answers = await asyncio.gather(*(query_machine(machines, other, nodes, evidence.at) for other in asked))
    others = tuple(each for each in answers if isinstance(each, NodeEnriched))
    reached = {other.node.name for other in others}
    there = await find_replacement_machines(machines, node, failed.rejected, reached)
    evidence = msgspec.structs.replace(evidence, other_reports=others)
    if isinstance(there, Inconclusive):
        evidence = msgspec.structs.replace(evidence, inconclusive_reason=there.reason)
        return report_fault(evidence, failed.fault)
    return report_fault(evidence, failed.fault, there)
