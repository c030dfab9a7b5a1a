"""Builds the event of a machine that does not answer, as metadata publishes it."""

from datetime import timedelta
from typing import Any

from libs.common.contract.events import NodeUnreachable
from libs.common.contract.machine import MachineFault
from libs.common.contract.node import Node
from tests.builders import NOW, STREAM_ID, make_node

FAULT = MachineFault(
    kind="refused", step="connect", endpoint="10.0.0.1:50000 for 10.0.0.5", message="connection refused"
)


def make_unreachable(
    node: Node | None = None, *, fault: MachineFault = FAULT, attempt: int = 1, **fields: Any
) -> NodeUnreachable:
    """The event for a Node; other keywords are fields of NodeUnreachable."""
    usual: dict[str, Any] = {
        "stream_id": STREAM_ID,
        "observed_sequence": 1,
        "retry_at": NOW + timedelta(seconds=attempt),
        "observed_at": NOW,
        "enriched_at": NOW,
    }
    return NodeUnreachable(node=node or make_node(), fault=fault, attempt=attempt, **(usual | fields))
