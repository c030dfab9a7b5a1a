"""What metadata says: a Node together with what its machine says of itself, or why the machine does not."""

from datetime import datetime

import msgspec

from libs.common.machine import MachineFacts, MachineFault
from libs.common.node import Node


class NodeEnriched(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="NodeEnriched.v1"
):
    """The Node, and what the machine that bears it attests."""

    incarnation: str
    observed_sequence: int  # stream sequence of the observation that it enriches: its place in the order
    node: Node
    facts: MachineFacts
    recognized_by: str  # "nodename", or "system-uuid" (kubelet's hostname-override)
    observed_at: datetime
    enriched_at: datetime


class NodeUnreachable(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="NodeUnreachable.v1"
):
    """The machine behind the Node gave no facts; the last known ones, if any, with their own time."""

    incarnation: str
    observed_sequence: int
    node: Node
    fault: MachineFault
    last_known: MachineFacts | None = None
    attempt: int  # consecutive failures with this fault's kind and step
    retry_at: datetime
    observed_at: datetime
    enriched_at: datetime


class EnrichedNodeGone(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event",
    tag="EnrichedNodeGone.v1",
):
    """NodeGone, passed on to those who hear enriched nodes only."""

    incarnation: str
    observed_sequence: int
    name: str
    uid: str
