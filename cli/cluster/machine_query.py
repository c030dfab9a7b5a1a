"""Queries the machine of a Node as metadata does: at the Node's addresses, with the same identity checks."""

import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Final

import msgspec

from cli.cluster.machine_events import make_enriched
from libs.common.cloud_config.fact_fields import TalosResource
from libs.common.contract.events import NodeEnriched
from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import PROVIDED_NODE_IP_ANNOTATION, Node
from libs.talos.api import TalosApi
from services.metadata.core.dial_targets import STEP, order_dial_targets
from services.metadata.core.identity import MachineIdentity, verify
from services.metadata.core.machine_replacement import Inconclusive
from services.metadata.machines.query_machine import QueryFailure, query_address, query_in_turn
from services.metadata.machines.replacement_detector import ReplacementDetector

_QUERY_SECONDS: Final = 5.0


async def query_machine(
    talos: TalosApi,
    node: Node,
    nodes: Sequence[Node],
    at: datetime,
    *,
    prefer_ipv6: bool = False,
    resources: frozenset[TalosResource] = frozenset(),
) -> NodeEnriched | QueryFailure:
    """Return metadata's event at that time, or the fault with the machines that answered instead.

    `resources` are those that the rules need: without one of them, no rule can be evaluated.
    """
    addresses = order_dial_targets(node.provided_node_ip, prefer_ipv6=prefer_ipv6)
    if isinstance(addresses, MachineFault):
        return QueryFailure(addresses, ())
    if not addresses:
        message = (
            f"the Node has no annotation {PROVIDED_NODE_IP_ANNOTATION}, so its machine cannot be queried"
        )
        return QueryFailure(MachineFault(kind="bad_node_ip", step=STEP, message=message), ())

    def why_not(facts: MachineFacts) -> MachineFault | None:
        judged = verify(node, facts, nodes)
        return judged if isinstance(judged, MachineFault) else None

    seen = await query_in_turn(
        talos, addresses, parts=resources, deadline_seconds=_QUERY_SECONDS, reject=why_not
    )
    if isinstance(seen, QueryFailure):
        return seen
    if seen.inventory.faults:
        return QueryFailure(next(iter(seen.inventory.faults.values())), ())
    facts = seen.facts
    if resources:
        facts = msgspec.structs.replace(facts, inventory=seen.inventory.inventory)
    by = verify(node, facts, nodes)
    assert isinstance(by, MachineIdentity)  # otherwise the query would have returned a fault
    return make_enriched(node, facts, at, verified_by=by.method)


async def find_replacement_machines(
    talos: TalosApi, node: Node, answered_at: tuple[MachineFacts, ...], reached: AbstractSet[str]
) -> tuple[ForeignMachine, ...] | Inconclusive:
    """Return the machines that answer in place of the Node's machine, as metadata judges it.

    `answered_at` are the facts of other machines at the Node's addresses. `reached` are the names of the
    Nodes whose machines answer.
    """
    detector = ReplacementDetector(
        talos,
        get_reachable_nodes=lambda: reached,
        deadline_seconds=_QUERY_SECONDS,
        monotonic=time.monotonic,
    )
    try:
        return await detector.judge(node, answered_at)
    finally:
        await detector.close()


async def fetch_node_name_at(talos: TalosApi, address: str) -> str:
    """Return the node name of the machine at an address; "" if none answers or dialing is not allowed."""
    addresses = order_dial_targets(address, prefer_ipv6=False)
    if isinstance(addresses, MachineFault) or not addresses:
        return ""
    seen = await query_address(talos, addresses[0], parts=(), deadline_seconds=_QUERY_SECONDS)
    return "" if isinstance(seen, MachineFault) else seen.facts.node_name
