"""Binds the sockets of a listener to an address and a port."""

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

# All addresses of both families, as in the components of Kubernetes: Go treats each of these so.
_ALL_ADDRESSES: Final = ("", "0.0.0.0", "::")  # noqa: S104 - recognised here
_NO_IPV6: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)


NewSocket = Callable[[int, int], socket.socket]


async def bind_sockets(
    address: str, port: int, *, new_socket: NewSocket = socket.socket
) -> tuple[socket.socket, ...]:
    """Return bound, non-blocking sockets: one for each address that a host name resolves to.

    An unspecified address means all addresses of both families, or of IPv4 if the host has no IPv6.
    Raises OSError.
    """
    if address in _ALL_ADDRESSES:
        return (_bound_to_all(port, new_socket),)
    found = await asyncio.get_running_loop().getaddrinfo(address, port, type=socket.SOCK_STREAM)
    addresses = dict.fromkeys((family, where) for family, *_, where in found)
    with ExitStack() as undo:
        sockets = [undo.enter_context(_bound(family, where, new_socket)) for family, where in addresses]
        undo.pop_all()
    return tuple(sockets)


def _bound_to_all(port: int, new_socket: NewSocket) -> socket.socket:
    try:
        return _bound(socket.AF_INET6, ("::", port), new_socket, ipv6_only=False)
    except OSError as error:
        if error.errno not in _NO_IPV6:
            raise
    return _bound(socket.AF_INET, ("0.0.0.0", port), new_socket)  # noqa: S104 - clients are on other hosts


def _bound(
    family: int, address: tuple[Any, ...], new_socket: NewSocket, *, ipv6_only: bool = True
) -> socket.socket:
    bound = new_socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, ipv6_only)
        bound.setblocking(False)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
