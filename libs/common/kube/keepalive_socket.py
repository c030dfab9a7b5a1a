"""Sockets that detect a dead peer, and texts for connection errors."""

import socket
from typing import Final

import aiohttp

# TCP_USER_TIMEOUT: the kernel ends a connection without acknowledgements after this time.
_DEAD_PEER_SECONDS: Final = 20

_Address = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[object, ...]]


def keepalive_socket(address: _Address) -> socket.socket:
    """Create a socket that detects a dead peer, because a watch only listens."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2)):
        if hasattr(socket, option):  # macOS has other names; there the read deadline must do
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER_SECONDS * 1000)
    return made


def describe_error(error: Exception) -> str:
    """Return what failed and what an operator should check."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"certificate not trusted ({error.certificate_error}): check certificate-authority"
        case aiohttp.ClientHttpProxyError():  # its own text has the URL, which may contain a password
            return f"the proxy rejected the connection ({error.status} {error.message}): check proxy-url"
        case aiohttp.ClientProxyConnectionError():
            return f"cannot connect to the proxy ({error.os_error}): check proxy-url"
        case aiohttp.ClientConnectorDNSError():
            return f"name not resolved ({error.os_error}): check server and DNS"
        case aiohttp.ClientSSLError():
            return f"TLS handshake failed ({error}): check the port and the client certificate"
        case aiohttp.ClientConnectorError():
            return f"cannot connect ({error.os_error}): check that it runs and is reachable from here"
        case aiohttp.ServerDisconnectedError():
            return "the server closed the connection without an answer"
        case _:
            return f"connection broken ({type(error).__name__}: {error})"
