"""Overlapping pod CIDRs, as flow tests, the bench and random faults judge them. Pure."""

from collections.abc import Iterable
from ipaddress import ip_network
from typing import Any, NamedTuple


class OwnedBlock(NamedTuple):
    """A pod CIDR with the Node that has it, such as its name."""

    owner: Any
    cidr: str


def list_overlapping(blocks: Iterable[OwnedBlock]) -> list[tuple[OwnedBlock, OwnedBlock]]:
    """Each block that overlaps an earlier one, after that one; blocks are in the order of their addresses."""
    parsed = [(ip_network(block.cidr), block) for block in blocks]
    found: list[tuple[OwnedBlock, OwnedBlock]] = []
    outer = None  # an overlapping block begins later and is within this one: both are CIDRs
    for network, block in sorted(parsed, key=lambda each: (each[0].version, each[0], str(each[1].owner))):
        if outer is not None and network.overlaps(outer[0]):
            found.append((outer[1], block))
        else:
            outer = network, block
    return found
