"""When the flow first showed the addresses of a Node. Of two Nodes, the one shown first holds an address.

The order is that of the stream, so it needs no clock, and it is the same for all replicas after any restart.
Neither a machine nor a kubelet writes it.
"""

from collections.abc import Mapping

import msgspec


class FirstShown(msgspec.Struct, frozen=True, array_like=True):
    """The message that first showed an address of a Node, as a sequence of the stream.

    Since that message each one about the Node has shown the address.
    """

    sequence: int = 0  # 0: the message that contains this value
    # A message that showed the Node without the address, 0 if none did. None: metadata has followed the
    # machine, so `sequence` is the moment at which the machine got the address.
    absent_at: int | None = 0

    def resolve(self, sequence: int) -> "FirstShown":
        """Return the value that the message with this sequence contains, without the placeholder 0."""
        if self.sequence > sequence:
            return FirstShown(sequence, 0)  # a disk failure cut off the end of the stream
        return self if self.sequence else FirstShown(sequence, self.absent_at)

    def precedes(self, other: "FirstShown") -> bool:
        """Return whether the flow showed this claim before the other one could exist; False if unknown."""
        not_before = other.sequence if other.absent_at is None else other.absent_at
        return 0 < self.sequence < not_before


class AddressHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When the flow first showed each address that a Node claims in this message, and each podCIDR."""

    since: FirstShown = FirstShown()  # of all addresses that `later` does not contain
    later: Mapping[str, FirstShown] = {}  # by address in canonical form, and by podCIDR

    def resolve(self, sequence: int) -> "AddressHistory":
        """Return the history that the message with this sequence contains, without placeholders."""
        if 0 < self.since.sequence <= sequence and not self.later:
            return self  # nearly every message: each is resolved once per publish
        later = {address: shown.resolve(sequence) for address, shown in self.later.items()}
        return AddressHistory(since=self.since.resolve(sequence), later=later)

    def get(self, address: str) -> FirstShown:
        """Return when the flow first showed this address, which is in canonical form, or this podCIDR."""
        return self.later.get(address, self.since)
