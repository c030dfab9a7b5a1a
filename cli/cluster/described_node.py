"""A Node with the facts of its machine, the input of a preview. Pure."""

import msgspec

from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node


class DescribedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A Node and its facts, a subset of `NodeEnriched`: a stored event can be decoded as one."""

    node: Node
    facts: MachineFacts
    verified_by: str = "nodename"

    @property
    def name(self) -> str:
        return self.node.name
