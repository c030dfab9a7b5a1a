"""Nodes that are not Ready, machines that answer in their place, and the events of metadata on them."""

from datetime import datetime, timedelta
from typing import Any

from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import ForeignMachine, MachineFault
from libs.common.contract.node import Node, NodeCondition
from tests import unreachable
from tests.builders import NOW, STREAM_ID, make_facts, make_node, make_node_enriched

OWN_UUID = "3c2f1a5e-7b9d-4e60-8f12-0a1b2c3d4e5f"
NEW_UUID = "9f8e7d6c-5b4a-4392-a1b0-c9d8e7f60514"
LONG_AGO = NOW - timedelta(hours=2)
OTHERS = MachineFault(
    kind="wrong_machine", step="Nodename", message="the machine at 10.0.0.5 answers as new-1"
)
REFUSED = MachineFault(kind="refused", step="Nodename", message="connection refused")


def format_time(at: datetime) -> str:
    """meta/v1 Time."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def make_ready_condition(status: str = "Unknown", since: datetime | str | None = LONG_AGO) -> NodeCondition:
    """The Node's condition Ready."""
    text = format_time(since) if isinstance(since, datetime) else since
    return NodeCondition(type="Ready", status=status, last_transition_time=text)


def make_lost_node(name: str = "web-1", **fields: Any) -> Node:
    """Initialized, not Ready for two hours, with its own UUID; other keywords are those of `make_node`."""
    usual = {
        "taints": (),
        "conditions": (make_ready_condition(),),
        "system_uuid": OWN_UUID,
        "provider_id": f"talos://{name}",
    }
    return make_node(name, **(usual | fields))


def make_foreign_machine(
    node_name: str = "new-1", *, address: str = "10.0.0.5", uuid: str = NEW_UUID, queried_at: datetime = NOW
) -> ForeignMachine:
    """A machine that answers in the Node's place."""
    return ForeignMachine(address=address, node_name=node_name, uuid=uuid, queried_at=queried_at)


def make_unreachable(
    node: Node,
    *,
    foreign_machines: tuple[ForeignMachine, ...] = (),
    fault: MachineFault | None = None,
    **fields: Any,
) -> NodeUnreachable:
    """Metadata's event; without `fault`, other machines answered, or no machine did."""
    fault = fault or (OTHERS if foreign_machines else REFUSED)
    return unreachable.make_unreachable(
        node, fault=fault, foreign_machines=foreign_machines, **({"retry_at": NOW} | fields)
    )


def make_answering(node: Node, *, stream_id: str = STREAM_ID, **facts: Any) -> NodeEnriched:
    """Metadata's event of a machine that answers; keywords are those of `make_facts`."""
    return make_node_enriched(node, make_facts(**({"node_name": node.name} | facts)), stream_id=stream_id)
