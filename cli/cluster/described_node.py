"""A Node with the facts of its machine, and the events that metadata would publish about it. Pure."""

from datetime import datetime
from typing import Final

import msgspec

from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import Node

_FIELD_NAMES: Final = {
    "provider_id": "providerID",
    "region": "region",
    "zone": "zone",
    "instance_type": "instance type",
}


class DescribedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A Node and its facts, a subset of `NodeEnriched`: a stored event can be decoded as one."""

    node: Node
    facts: MachineFacts
    verified_by: str = "nodename"

    @property
    def name(self) -> str:
        return self.node.name

    def make_event(self, at: datetime) -> NodeEnriched:
        """Return the event about a machine that answers."""
        return NodeEnriched(
            stream_id="",
            observed_sequence=0,
            node=self.node,
            facts=self.facts,
            verified_by=self.verified_by,
            observed_at=at,
            enriched_at=at,
        )


def describe_sources(facts: MachineFacts) -> str:
    """Return which metadata a cloud account supplies, "" if all of it is the machine's own."""
    if facts.supplement is None or not facts.supplement.fields:
        return ""
    names = ", ".join(_FIELD_NAMES[field] for field in facts.supplement.fields)
    return f"{names} from cloud account {facts.supplement.account}"


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
