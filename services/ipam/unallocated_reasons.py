"""Why a Node gets no pod CIDR now."""

import msgspec


class NotReady(msgspec.Struct, frozen=True):
    """Something is not known, or not so, yet: nobody has to do anything."""

    reason: str


class CannotAllocate(msgspec.Struct, frozen=True):
    """As things are configured, it can get none: somebody has to change something."""

    reason: str


class NotManaged(msgspec.Struct, frozen=True):
    """The file has the Node be another's: nothing is written for it."""

    reason: str
