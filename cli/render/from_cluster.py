"""Reads Nodes from the cluster and facts from their machines, with the caller's credentials."""

import asyncio
from collections.abc import Sequence
from datetime import datetime

from cli.cluster.access import open_kube_client, open_talos_client
from cli.cluster.machine_query import query_machine
from cli.cluster.read_cluster import read_cluster, require
from cli.render.node_selection import GatheredNodes, NodeSelection, SkippedNode
from libs.common.cloud_config.fact_fields import TalosResource
from libs.common.contract.events import NodeEnriched
from libs.common.contract.node import Node, trim_node
from libs.talos.api import TalosApi
from services.labeler.core.plan.node_ownership import find_foreign
from services.metadata.machines.query_machine import QueryFailure


async def gather_from_cluster(
    cluster: NodeSelection, *, prefer_ipv6: bool, resources: frozenset[TalosResource]
) -> GatheredNodes:
    """Return the selected Nodes; only reads. Raises CommandError.

    It lists the Nodes once and queries each machine as metadata does. `resources` are the Talos resources
    that the rules need.
    """
    names = cluster.from_cluster
    async with open_kube_client(cluster, command="render") as kube, open_talos_client(cluster) as machines:
        snapshot = await read_cluster(kube, cluster, "nodes")
        nodes = [trim_node(node) for node in require(snapshot.nodes)]
        selected = [node for node in nodes if cluster.all_nodes or node.name in names]
        answers = await asyncio.gather(
            *(
                _query_node(machines, node, nodes, snapshot.at, prefer_ipv6=prefer_ipv6, resources=resources)
                for node in selected
            )
        )
    there = {node.name for node in selected}
    unknown = (SkippedNode(name=name, reason="Node not found") for name in names if name not in there)
    return GatheredNodes(
        nodes=tuple(answer for answer in answers if isinstance(answer, NodeEnriched)),
        skipped=(*unknown, *(answer for answer in answers if isinstance(answer, SkippedNode))),
    )


async def _query_node(
    machines: TalosApi,
    node: Node,
    nodes: Sequence[Node],
    at: datetime,
    *,
    prefer_ipv6: bool,
    resources: frozenset[TalosResource],
) -> NodeEnriched | SkippedNode:
    foreign = find_foreign(node, None) if not node.provided_node_ip else None
    if foreign:
        return SkippedNode(name=node.name, reason=f"not managed: {foreign.reason}", expected=True)
    seen = await query_machine(machines, node, nodes, at, prefer_ipv6=prefer_ipv6, resources=resources)
    if isinstance(seen, QueryFailure):
        return SkippedNode(name=node.name, reason=f"{seen.fault.step}: {seen.fault.message}")
    return seen
