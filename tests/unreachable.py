"""A machine that gives no facts, as metadata says it."""

from datetime import timedelta

from libs.common.contract.events import NodeUnreachable
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.node import Node
from tests.builders import NOW, STREAM_ID, make_node

FAULT = MachineFault(
    kind="refused", step="connect", endpoint="10.0.0.1:50000 for 10.0.0.5", message="connection refused"
)


def make_unreachable(
    node: Node | None = None,
    *,
    fault: MachineFault = FAULT,
    last_known: MachineFacts | None = None,
    attempt: int = 1,
) -> NodeUnreachable:
    """Metadata's word that the machine behind a Node does not answer."""
    return NodeUnreachable(
        stream_id=STREAM_ID,
        observed_sequence=1,
        node=node or make_node(),
        fault=fault,
        last_known=last_known,
        attempt=attempt,
        retry_at=NOW + timedelta(seconds=attempt),
        observed_at=NOW,
        enriched_at=NOW,
    )
