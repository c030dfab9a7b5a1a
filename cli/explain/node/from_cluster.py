"""Gathers what is known of a Node: from Kubernetes, Talos and the services, with the caller's credentials."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cli.asking import ask, in_its_place, look
from cli.cluster import CannotAsk, gathered
from cli.credentials import NoAccess, kubernetes, talos
from cli.explain.node.around import Around
from cli.explain.node.around_from_cluster import look_around
from cli.explain.node.evidence import Evidence, Look
from cli.explain.node.heard import as_heard, believed
from cli.inside import asking
from cli.inside.seen import FlowSeen, Object, Unknown
from cli.nearest import or_meant
from cli.render.config_in_use import ConfigInUse
from cli.render.described import DescribedNode
from cli.render.run import Refused, judged
from cli.server_clock import ahead
from libs.common.cloud_config.fact_fields import TalosResource
from libs.common.cloud_config.required_resources import required_resources
from libs.common.machine import MachineFacts
from libs.common.node import PROVIDED_NODE_IP_ANNOTATION, Node, trim_node
from services.metadata.identity import MachineIdentity, verify
from services.metadata.machine_replacement import Inconclusive
from services.metadata.query_machine import QueryResult
from services.metadata.talos_api.api import TalosApi


class Source(asking.FlowSource, frozen=True, kw_only=True):
    """Which Node, and by which way to ask."""

    name: str
    lease_name: str = ""  # of the watcher; "" = as its workload is told, as for the next
    lease_namespace: str = ""
    talosconfig: Path | None = None
    talos_endpoints: str = ""
    without_talos: bool = False


def gather(source: Source, file: ConfigInUse | None) -> Evidence:
    """Only reads. The rules of the --cloud-config `file` say what is asked of machines. Raises CannotAsk."""
    return gathered(_gather(source, file))


async def _gather(source: Source, file: ConfigInUse | None) -> Evidence:
    flow, evidence = await asyncio.gather(_flow(source), _of_kubernetes(source, file))
    evidence = msgspec.structs.replace(evidence, flow=flow)
    if not evidence.node.provided_node_ip:
        text = (
            f"the Node has no annotation {PROVIDED_NODE_IP_ANNOTATION}: metadata does not ask its "
            "machine either"
        )
        return msgspec.structs.replace(evidence, not_asked=text, withheld=True)
    if source.without_talos:
        return msgspec.structs.replace(evidence, not_asked="not asked: --without-talos", withheld=True)
    try:
        machines = talos(source.talosconfig, source.talos_endpoints, with_stage=True)
    except NoAccess as error:
        return as_heard(msgspec.structs.replace(evidence, not_asked=str(error)))
    try:
        return believed(await _of_machine(machines, evidence))
    finally:
        await machines.close()


async def _of_kubernetes(source: Source, file: ConfigInUse | None) -> Evidence:
    kube = kubernetes(source.kubeconfig, source.context, user_agent="talos-ccm-explain")
    try:
        nodes = [node async for page in kube.list_nodes() for node in page.items]
        node = next((node for node in nodes if node.name == source.name), None)
        if node is None:
            meant = or_meant(source.name, (node.name for node in nodes))
            raise CannotAsk(
                f"there is no Node {source.name}{meant} A machine that should be one: its kubelet's log says "
                "why it has not registered (talosctl logs kubelet)"
            )
        around = await look_around(kube, node, source)
        at = datetime.now(UTC) + ahead(kube)
    finally:
        await kube.close()
    mistakes = ""
    if file is None and around.file:
        file, mistakes = _in_use(around)
    return Evidence(
        node=trim_node(node),
        nodes=tuple(map(trim_node, nodes)),
        file=file,
        file_mistakes=mistakes,
        around=around,
        namespace=source.namespace,
        at=at,
    )


def _in_use(around: Around) -> tuple[ConfigInUse | None, str]:
    """The file of the chart's ConfigMap, or its mistakes."""
    try:
        return judged(around.file, around.file_source), ""
    except Refused as error:
        first, *others = str(error).splitlines()
        return None, first + (f" (and {len(others)} more)" if others else "")


async def _flow(source: Source) -> FlowSeen | Unknown:
    return await asking.ask(msgspec.structs.replace(source, objects=(Object("node", source.name),)))


async def _of_machine(machines: TalosApi, evidence: Evidence) -> Evidence:
    """Others are asked only where one of them answers in this one's place."""
    resources = required_resources(evidence.file.written.rules) if evidence.file else frozenset()
    prefer_ipv6 = evidence.config.prefer_ipv6
    seen = await look(machines, evidence.node, evidence.nodes, prefer_ipv6=prefer_ipv6, resources=resources)
    if isinstance(seen, QueryResult):
        return msgspec.structs.replace(
            evidence, look=_described(evidence.node, seen, evidence.nodes, resources)
        )
    evidence = msgspec.structs.replace(evidence, look=seen.fault)
    return await _of_others(machines, evidence, seen.rejected) if seen.rejected else evidence


async def _of_others(machines: TalosApi, evidence: Evidence, answered: tuple[MachineFacts, ...]) -> Evidence:
    node, nodes = evidence.node, evidence.nodes
    asked = [other for other in nodes if other.name != node.name and other.provided_node_ip]
    answers = await asyncio.gather(*(ask(machines, other, nodes) for other in asked))
    found = (
        _described(other, seen, nodes, frozenset())
        for other, seen in zip(asked, answers, strict=True)
        if isinstance(seen, QueryResult)
    )
    others = tuple(each for each in found if isinstance(each, DescribedNode))
    reached = {other.name for other in others}
    there = await in_its_place(machines, node, answered, reached)
    if isinstance(there, Inconclusive):
        return msgspec.structs.replace(evidence, others=others, not_proven=there.reason)
    return msgspec.structs.replace(evidence, others=others, answered_by=there)


def _described(
    node: Node, seen: QueryResult, nodes: Sequence[Node], resources: frozenset[TalosResource]
) -> Look:
    if seen.inventory.faults:
        return next(iter(seen.inventory.faults.values()))  # without it no rule can be judged
    facts = seen.facts
    if resources:
        facts = msgspec.structs.replace(facts, inventory=seen.inventory.inventory)
    by = verify(node, facts, nodes)
    assert isinstance(by, MachineIdentity)  # or it would have been a fault
    return DescribedNode(node=node, facts=facts, recognized_by=by.method)
