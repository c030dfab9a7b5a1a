"""A Node and what its machine says: what a preview is made of. Pure."""

import msgspec

from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node


class DescribedNode(msgspec.Struct, frozen=True, kw_only=True):
    """The part of `NodeEnriched` that decides what becomes of a Node: a stored event can be read as one."""

    node: Node
    facts: MachineFacts
    verified_by: str = msgspec.field(default="nodename", name="recognized_by")

    @property
    def name(self) -> str:
        return self.node.name
