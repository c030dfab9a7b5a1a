"""Sockets that notice a dead peer, and words for what can go wrong on the way to the API server."""

import socket
from typing import Final

import aiohttp

_DEAD_PEER_SECONDS: Final = 20  # a peer that acknowledges nothing for that long is gone (TCP_USER_TIMEOUT)

_Address = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[object, ...]]


def keepalive_socket(address: _Address) -> socket.socket:
    """A socket whose kernel ends a connection to a peer that acknowledges nothing (a watch only listens)."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2)):
        if hasattr(socket, option):  # macOS has other names, and the read deadline
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER_SECONDS * 1000)
    return made


def describe_error(error: Exception) -> str:
    """What went wrong on the way and where to look, for an operator."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"its certificate is not trusted ({error.certificate_error}): check certificate-authority"
        case aiohttp.ClientConnectorDNSError():
            return f"its name cannot be resolved ({error.os_error}): check server and DNS"
        case aiohttp.ClientSSLError():
            return f"the TLS handshake failed ({error}): check the port, and our client certificate"
        case aiohttp.ClientConnectorError():
            return f"cannot connect ({error.os_error}): check that it runs and can be reached from here"
        case aiohttp.ServerDisconnectedError():
            return "it closed the connection without an answer"
        case _:
            return f"the connection broke ({type(error).__name__}: {error})"
