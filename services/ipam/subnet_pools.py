"""Which pool a node's own IPv6 subnet makes, and how large its blocks are: the reference's table."""

from ipaddress import IPv6Interface
from typing import Final

# Longest subnet of the row, and how many bits longer than the subnet its blocks are.
_ROWS: Final = ((99, 16), (105, 8), (111, 4), (118, 2), (119, 1), (123, 0))
_MIN_PREFIX: Final = 64  # of a wider subnet, the /64 around the node's address
_HOST_PREFIX: Final = 128


def derive_subnet_pool(prefix: str) -> tuple[str, int] | None:
    """The pool's CIDR, which all nodes of a subnet share, and its node mask; None for a single address.

    `prefix` is an address with its prefix length, such as 2001:db8::5/64. ValueError in words if it is none
    of IPv6, or if fewer than 32 addresses are in it.
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
