"""Nodes as a cluster has them, and what their machines say now: read with the caller's own credentials."""

import asyncio
from collections.abc import Sequence

import msgspec

from cli.asking import ask
from cli.credentials import NoAccess, kubernetes, talos
from cli.render.described import DescribedNode
from cli.render.gathering import Gathered, GatheringError, Untold, Wanted
from libs.common.cloud_config.fact_fields import TalosResource
from libs.common.kube_api.api import KubeApi
from libs.common.kube_api.errors import KubeError
from libs.common.machine import MachineFault
from libs.common.node import Node, trim_node
from services.labeler.node_ownership import why_not_managed
from services.metadata.identity import MachineIdentity, verify
from services.metadata.talos_api.api import TalosApi


def read_cluster(wanted: Wanted, *, prefer_ipv6: bool, resources: frozenset[TalosResource]) -> Gathered:
    """The Nodes that are wanted; `resources` is what rules ask of machines. Raises GatheringError.

    Only reads: one list from Kubernetes, and of each machine what metadata would ask.
    """
    try:
        return asyncio.run(_read(wanted, prefer_ipv6, resources))
    except NoAccess as error:
        raise GatheringError(str(error)) from error


async def _read(cluster: Wanted, prefer_ipv6: bool, resources: frozenset[TalosResource]) -> Gathered:
    names = cluster.from_cluster
    kube = kubernetes(cluster.kubeconfig, cluster.context, user_agent="talos-ccm-render")
    try:
        machines = talos(cluster.talosconfig, cluster.talos_endpoints)
        try:
            nodes = [trim_node(node) for node in await _nodes(kube)]
            asked = [node for node in nodes if cluster.all_nodes or node.name in names]
            answers = await asyncio.gather(
                *(_ask(machines, node, nodes, prefer_ipv6, resources) for node in asked)
            )
        finally:
            await machines.close()
    finally:
        await kube.close()
    there = {node.name for node in asked}
    unknown = (Untold(name=name, reason="there is no such Node") for name in names if name not in there)
    return Gathered(
        nodes=tuple(answer for answer in answers if isinstance(answer, DescribedNode)),
        untold=(*unknown, *(answer for answer in answers if isinstance(answer, Untold))),
    )


async def _nodes(kube: KubeApi) -> list[Node]:
    try:
        return [node async for page in kube.list_nodes() for node in page.items]
    except KubeError as error:
        raise GatheringError(f"the Kubernetes API does not give its Nodes: {error}") from error


async def _ask(
    machines: TalosApi,
    node: Node,
    nodes: Sequence[Node],
    prefer_ipv6: bool,
    resources: frozenset[TalosResource],
) -> DescribedNode | Untold:
    foreign = why_not_managed(node, None) if not node.provided_node_ip else ""
    if foreign:
        return Untold(name=node.name, reason=f"not ours: {foreign}", expected=True)
    seen = await ask(machines, node, nodes, prefer_ipv6=prefer_ipv6, resources=resources)
    if isinstance(seen, MachineFault):
        return Untold(name=node.name, reason=f"{seen.step}: {seen.message}")
    if seen.inventory.faults:
        part, fault = next(iter(seen.inventory.faults.items()))
        return Untold(name=node.name, reason=f"{part}: {fault.message}")
    facts = seen.facts
    if resources:
        facts = msgspec.structs.replace(facts, inventory=seen.inventory.inventory)
    by = verify(node, facts, nodes)
    assert isinstance(by, MachineIdentity)  # or it would have been a fault
    return DescribedNode(node=node, facts=facts, recognized_by=by.method)
