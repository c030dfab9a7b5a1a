"""Nodes as a cluster has them, and what their machines say now: read with the caller's own credentials."""

import asyncio
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from cli.render.described import DescribedNode
from cli.render.gathering import Gathered, GatheringError, Untold, Wanted
from libs.common.cloud_config.fields import Resource
from libs.common.kube_api.api import KubeApi
from libs.common.kube_api.config import KubeConfigError, load_kube_config
from libs.common.kube_api.errors import KubeError
from libs.common.machine import MachineFacts, MachineFault
from libs.common.node import Node, what_we_read
from services.labeler.ownership import why_not_ours
from services.metadata.ask_machine import ask_in_turn
from services.metadata.links import dial_order
from services.metadata.resolve import Recognized, recognize
from services.metadata.talos_api.api import TalosApi
from services.metadata.talos_api.credentials import CredentialStore
from services.metadata.talos_api.talosconfig import CredentialsError, file_candidates

_LOOK_SECONDS: Final = 5.0
_TALOSCONFIG_HINT: Final = "name one with --talosconfig or TALOSCONFIG (the role os:reader suffices)"


def read_cluster(wanted: Wanted, *, prefer_ipv6: bool, resources: frozenset[Resource]) -> Gathered:
    """The Nodes that are wanted; `resources` is what rules ask of machines. Raises GatheringError.

    Only reads: one list from Kubernetes, and of each machine what metadata would ask.
    """
    return asyncio.run(_read(wanted, prefer_ipv6, resources))


async def _read(cluster: Wanted, prefer_ipv6: bool, resources: frozenset[Resource]) -> Gathered:
    names = cluster.from_cluster
    kube = _kubernetes(cluster)
    try:
        talos = _talos(cluster)
        try:
            nodes = [what_we_read(node) for node in await _nodes(kube)]
            asked = [node for node in nodes if cluster.all_nodes or node.name in names]
            answers = await asyncio.gather(
                *(_ask(talos, node, nodes, prefer_ipv6, resources) for node in asked)
            )
        finally:
            await talos.close()
    finally:
        await kube.close()
    there = {node.name for node in asked}
    unknown = (Untold(name=name, reason="there is no such Node") for name in names if name not in there)
    return Gathered(
        nodes=tuple(answer for answer in answers if isinstance(answer, DescribedNode)),
        untold=(*unknown, *(answer for answer in answers if isinstance(answer, Untold))),
    )


def _kubernetes(cluster: Wanted) -> KubeApi:
    path = cluster.kubeconfig
    usual = _home() / ".kube" / "config"
    if path is None and not os.environ.get("KUBECONFIG") and usual.exists():
        path = usual  # as kubectl does; the services look in their pod instead
    try:
        config = load_kube_config(path, os.environ, context=cluster.context)
        return KubeApi(config, user_agent="talos-ccm-render", connections=1)
    except KubeConfigError as error:
        raise GatheringError(f"no Kubernetes API to ask: {error}") from error


def _talos(cluster: Wanted) -> TalosApi:
    paths = (cluster.talosconfig,) if cluster.talosconfig else file_candidates(os.environ, _home())
    endpoints = cluster.talos_endpoints or os.environ.get("TALOS_ENDPOINTS", "")
    store = CredentialStore(paths, endpoints=endpoints)
    try:
        problem = store.current(_now()).problem(_now())
    except CredentialsError as error:
        raise GatheringError(f"no Talos API to ask: {error}; {_TALOSCONFIG_HINT}") from error
    if problem:
        raise GatheringError(f"no Talos API to ask: {store.problem}; {_TALOSCONFIG_HINT}")
    return TalosApi(store, clock=_now)


async def _nodes(kube: KubeApi) -> list[Node]:
    try:
        return [node async for page in kube.list_nodes() for node in page.items]
    except KubeError as error:
        raise GatheringError(f"the Kubernetes API does not give its Nodes: {error}") from error


async def _ask(
    talos: TalosApi, node: Node, nodes: Sequence[Node], prefer_ipv6: bool, resources: frozenset[Resource]
) -> DescribedNode | Untold:
    """As metadata asks: by the Node's own addresses, and only a machine that bears the Node is believed."""
    foreign = why_not_ours(node, None) if not node.provided_node_ip else ""
    if foreign:
        return Untold(name=node.name, reason=f"not ours: {foreign}", expected=True)
    addresses = dial_order(node.provided_node_ip, prefer_ipv6=prefer_ipv6)
    if isinstance(addresses, MachineFault):
        return Untold(name=node.name, reason=addresses.message)

    def why_not(facts: MachineFacts) -> MachineFault | None:
        judged = recognize(node, facts, nodes)
        return judged if isinstance(judged, MachineFault) else None

    seen = await ask_in_turn(
        talos, addresses, parts=resources, deadline_seconds=_LOOK_SECONDS, why_not=why_not
    )
    if isinstance(seen, MachineFault):
        return Untold(name=node.name, reason=f"{seen.step}: {seen.message}")
    if seen.inventory.faults:
        part, fault = next(iter(seen.inventory.faults.items()))
        return Untold(name=node.name, reason=f"{part}: {fault.message}")
    facts = seen.facts
    if resources:
        facts = msgspec.structs.replace(facts, inventory=seen.inventory.inventory)
    by = recognize(node, facts, nodes)
    assert isinstance(by, Recognized)  # or it would have been a fault
    return DescribedNode(node=node, facts=facts, recognized_by=by.by)


def _home() -> Path:
    return Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none


def _now() -> datetime:
    return datetime.now(UTC)
