"""Binds the sockets of a listener to an address and a port."""

import asyncio
import socket
from contextlib import ExitStack
from typing import Any, Final

_V6ONLY: Final = (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)


async def bind_sockets(address: str, port: int) -> tuple[socket.socket, ...]:
    """Return a bound, non-blocking socket for each address that the host name resolves to. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(
        address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with ExitStack() as undo:
        sockets = tuple(
            undo.enter_context(_bound(family, where)) for family, *_, where in dict.fromkeys(found)
        )
        undo.pop_all()
    return sockets


def _bound(family: int, address: tuple[Any, ...]) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(*_V6ONLY)
        bound.setblocking(False)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
