"""The kinds of reasons why a Node gets no pod CIDR now."""

import msgspec


class NotReady(msgspec.Struct, frozen=True):
    """A fact is missing or a state is not reached yet; no operator needs to act."""

    reason: str


class CannotAllocate(msgspec.Struct, frozen=True):
    """The configuration provides no block for this Node; an operator must change it."""

    reason: str


class NotManaged(msgspec.Struct, frozen=True):
    """The --cloud-config file assigns the Node to another controller: ipam writes nothing for it."""

    reason: str
