"""Derives a pool and its mask from a node's IPv6 subnet, by the table of the reference controller."""

from ipaddress import IPv6Interface
from typing import Final

# Longest subnet prefix of the row, and the bits by which a block's prefix is longer.
_ROWS: Final = ((99, 16), (105, 8), (111, 4), (118, 2), (119, 1), (123, 0))
_MIN_PREFIX: Final = 64  # in a wider subnet, the /64 around the node's address is used
_HOST_PREFIX: Final = 128


def derive_subnet_pool(prefix: str) -> tuple[str, int] | None:
    """Return the pool's CIDR, which all nodes of a subnet share, and its mask; None for a single address.

    `prefix` is an address with its prefix length, such as 2001:db8::5/64. Raises ValueError with the reason
    if it is not IPv6 or contains fewer than 32 addresses.
    """
    try:
        address = IPv6Interface(prefix)
    except ValueError:
        raise ValueError(f"{prefix} is no IPv6 address with a prefix length") from None
    length = address.network.prefixlen
    if length == _HOST_PREFIX:
        return None
    if length < _MIN_PREFIX:
        address, length = IPv6Interface((address.ip, _MIN_PREFIX)), _MIN_PREFIX
    for longest, more in _ROWS:
        if length <= longest:
            return str(address.network), length + more
    raise ValueError(f"the subnet {address.network} is too small: /{_ROWS[-1][0]} is the smallest for pods")
