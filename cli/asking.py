"""Asks the machine behind a Node as metadata asks it: by the Node's own addresses, believing only its own."""

import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from libs.common.cloud_config.fields import Resource
from libs.common.machine import AnotherMachine, MachineFacts, MachineFault
from libs.common.node import PROVIDED_NODE_IP, Node
from services.metadata.ask_machine import Seen, Unseen, ask_in_turn, look_in_turn
from services.metadata.ask_others import Members, ask_others
from services.metadata.in_its_place import NotProven
from services.metadata.links import STEP, dial_order
from services.metadata.resolve import recognize
from services.metadata.talos_api.api import TalosApi

_LOOK_SECONDS: Final = 5.0


async def ask(
    talos: TalosApi,
    node: Node,
    nodes: Sequence[Node],
    *,
    prefer_ipv6: bool = False,
    resources: frozenset[Resource] = frozenset(),
) -> Seen | MachineFault:
    """What the machine says that bears this one of the Nodes, or why it does not."""
    found = await look(talos, node, nodes, prefer_ipv6=prefer_ipv6, resources=resources)
    return found.fault if isinstance(found, Unseen) else found


async def look(
    talos: TalosApi,
    node: Node,
    nodes: Sequence[Node],
    *,
    prefer_ipv6: bool = False,
    resources: frozenset[Resource] = frozenset(),
) -> Seen | Unseen:
    """The same, and who answered instead of it."""
    addresses = dial_order(node.provided_node_ip, prefer_ipv6=prefer_ipv6)
    if isinstance(addresses, MachineFault):
        return Unseen(addresses, ())
    if not addresses:
        message = f"the Node has no annotation {PROVIDED_NODE_IP}: its machine is not asked"
        return Unseen(MachineFault(kind="bad_node_ip", step=STEP, message=message), ())

    def why_not(facts: MachineFacts) -> MachineFault | None:
        judged = recognize(node, facts, nodes)
        return judged if isinstance(judged, MachineFault) else None

    return await look_in_turn(
        talos, addresses, parts=resources, deadline_seconds=_LOOK_SECONDS, why_not=why_not
    )


async def in_its_place(
    talos: TalosApi, node: Node, answered: tuple[MachineFacts, ...], reached: AbstractSet[str]
) -> tuple[AnotherMachine, ...] | NotProven:
    """Who answers in the place of the Node's machine, as metadata judges it.

    `answered` is what others said where it was looked for; `reached` names the Nodes whose machines answer.
    """
    members = Members(talos, deadline_seconds=_LOOK_SECONDS, monotonic=time.monotonic)
    try:
        return await ask_others(
            talos,
            node,
            answered,
            members=members,
            reached=lambda: reached,
            deadline_seconds=_LOOK_SECONDS,
        )
    finally:
        await members.close()


async def node_name_at(talos: TalosApi, address: str) -> str:
    """Which Node's name the machine at an address bears, "" where none answers or none may be dialled."""
    addresses = dial_order(address, prefer_ipv6=False)
    if isinstance(addresses, MachineFault) or not addresses:
        return ""
    seen = await ask_in_turn(
        talos, addresses, parts=(), deadline_seconds=_LOOK_SECONDS, why_not=lambda facts: None
    )
    return "" if isinstance(seen, MachineFault) else seen.facts.node_name
