"""The events that metadata would publish about a machine that this command has queried. Pure."""

from datetime import datetime

from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import Node


def make_enriched(node: Node, facts: MachineFacts, verified_by: str, at: datetime) -> NodeEnriched:
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
