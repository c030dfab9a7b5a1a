"""Gathers what is known of a Node: from Kubernetes, Talos and NATS, with the caller's own credentials."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cli.asking import ask, in_its_place, look
from cli.credentials import NoAccess, kubernetes, talos
from cli.explain.node.evidence import Evidence, Look
from cli.explain.node.last_words import LastWords
from cli.render.config_in_use import ConfigInUse
from cli.render.described import DescribedNode
from libs.common.cloud_config.fields import Resource
from libs.common.cloud_config.inventory import needed_resources
from libs.common.kube_api.errors import KubeError
from libs.common.machine import MachineFacts
from libs.common.node import PROVIDED_NODE_IP, Node, what_we_read
from services.metadata.ask_machine import Seen
from services.metadata.in_its_place import NotProven
from services.metadata.resolve import Recognized, recognize
from services.metadata.talos_api.api import TalosApi


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Which Node, and by which way to ask."""

    name: str
    kubeconfig: Path | None = None
    context: str = ""
    talosconfig: Path | None = None
    talos_endpoints: str = ""
    without_talos: bool = False
    nats_servers: tuple[str, ...] = ()
    nats_nkey_file: Path | None = None
    nats_ca_file: Path | None = None


class CannotAsk(Exception):
    """There is nothing to explain; says why, and what to do about it."""


def gather(source: Source, file: ConfigInUse | None) -> Evidence:
    """Only reads. The rules of the --cloud-config `file` say what is asked of machines. Raises CannotAsk."""
    try:
        return asyncio.run(_gather(source, file))
    except NoAccess as error:
        raise CannotAsk(str(error)) from error
    except KubeError as error:
        raise CannotAsk(f"the Kubernetes API does not tell: {error}") from error


async def _gather(source: Source, file: ConfigInUse | None) -> Evidence:
    nodes, words = await asyncio.gather(_nodes(source), _last_words(source))
    node = next((node for node in nodes if node.name == source.name), None)
    if node is None:
        raise CannotAsk(
            f"there is no Node {source.name}. A machine that should be one: its kubelet's log says why it "
            "has not registered (talosctl logs kubelet)"
        )
    evidence = Evidence(
        node=node, nodes=tuple(nodes), file=file, last_words=words, at=datetime.now(UTC)
    )  # fmt: skip
    if not node.provided_node_ip:
        text = f"the Node has no annotation {PROVIDED_NODE_IP}: metadata does not ask its machine either"
        return msgspec.structs.replace(evidence, not_asked=text, withheld=True)
    if source.without_talos:
        return msgspec.structs.replace(evidence, not_asked="not asked: --without-talos", withheld=True)
    try:
        machines = talos(source.talosconfig, source.talos_endpoints, with_stage=True)
    except NoAccess as error:
        return msgspec.structs.replace(evidence, not_asked=str(error))
    try:
        return await _of_machine(machines, evidence)
    finally:
        await machines.close()


async def _nodes(source: Source) -> list[Node]:
    kube = kubernetes(source.kubeconfig, source.context, user_agent="talos-ccm-explain")
    try:
        return [what_we_read(node) async for page in kube.list_nodes() for node in page.items]
    finally:
        await kube.close()


async def _last_words(source: Source) -> LastWords | None:
    if not source.nats_servers:
        return None
    from cli.explain.node.from_nats import Nats, read_last_words  # noqa: PLC0415 - loaded where it is of use

    nats = Nats(
        servers=source.nats_servers, nkey_file=source.nats_nkey_file, ca_file=source.nats_ca_file
    )  # fmt: skip
    return await read_last_words(nats, source.name)


async def _of_machine(machines: TalosApi, evidence: Evidence) -> Evidence:
    """Others are asked only where one of them answers in this one's place."""
    resources = needed_resources(evidence.file.written.rules) if evidence.file else frozenset()
    prefer_ipv6 = evidence.config.prefer_ipv6
    seen = await look(machines, evidence.node, evidence.nodes, prefer_ipv6=prefer_ipv6, resources=resources)
    if isinstance(seen, Seen):
        return msgspec.structs.replace(
            evidence, look=_described(evidence.node, seen, evidence.nodes, resources)
        )
    evidence = msgspec.structs.replace(evidence, look=seen.fault)
    return await _of_others(machines, evidence, seen.others) if seen.others else evidence


async def _of_others(machines: TalosApi, evidence: Evidence, answered: tuple[MachineFacts, ...]) -> Evidence:
    node, nodes = evidence.node, evidence.nodes
    asked = [other for other in nodes if other.name != node.name and other.provided_node_ip]
    answers = await asyncio.gather(*(ask(machines, other, nodes) for other in asked))
    found = (
        _described(other, seen, nodes, frozenset())
        for other, seen in zip(asked, answers, strict=True)
        if isinstance(seen, Seen)
    )
    others = tuple(each for each in found if isinstance(each, DescribedNode))
    reached = {other.name for other in others}
    there = await in_its_place(machines, node, answered, reached)
    if isinstance(there, NotProven):
        return msgspec.structs.replace(evidence, others=others, not_proven=there.reason)
    return msgspec.structs.replace(evidence, others=others, answered_by=there)


def _described(node: Node, seen: Seen, nodes: Sequence[Node], resources: frozenset[Resource]) -> Look:
    if seen.inventory.faults:
        return next(iter(seen.inventory.faults.values()))  # without it no rule can be judged
    facts = seen.facts
    if resources:
        facts = msgspec.structs.replace(facts, inventory=seen.inventory.inventory)
    by = recognize(node, facts, nodes)
    assert isinstance(by, Recognized)  # or it would have been a fault
    return DescribedNode(node=node, facts=facts, recognized_by=by.by)
