"""The events that metadata would publish about the machine of a Node. Pure."""

from datetime import datetime
from typing import Final

from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import Node

MachineReport = NodeEnriched | NodeUnreachable
_FIELD_NAMES: Final = {
    "provider_id": "providerID",
    "region": "region",
    "zone": "zone",
    "instance_type": "instance type",
}


def describe_sources(facts: MachineFacts) -> str:
    """Return which metadata a cloud account supplies, "" if all of it is the machine's own."""
    if facts.supplement is None or not facts.supplement.fields:
        return ""
    names = ", ".join(_FIELD_NAMES[field] for field in facts.supplement.fields)
    return f"{names} from cloud account {facts.supplement.account}"


def make_enriched(
    node: Node, facts: MachineFacts, at: datetime, *, verified_by: str = "nodename"
) -> NodeEnriched:
    """Return the event about a machine that answers."""
    return NodeEnriched(
        stream_id="",
        observed_sequence=0,
        node=node,
        facts=facts,
        verified_by=verified_by,
        observed_at=at,
        enriched_at=at,
    )


def make_unreachable(
    node: Node,
    fault: MachineFault,
    at: datetime,
    *,
    last_known: MachineFacts | None = None,
    foreign_machines: tuple[ForeignMachine, ...] = (),
) -> NodeUnreachable:
    """Return the event about a machine that fails."""
    return NodeUnreachable(
        stream_id="",
        observed_sequence=0,
        node=node,
        fault=fault,
        last_known=last_known,
        attempt=1,
        retry_at=at,
        foreign_machines=foreign_machines,
        observed_at=at,
        enriched_at=at,
    )
