"""Reads an API server's certificate by a TLS handshake, without a request."""

import asyncio
import contextlib
import ssl
from typing import Final
from urllib.parse import urlsplit

from libs.common.kube.errors import Unreachable
from libs.common.kube.server_identity import ServerIdentity, parse_server_identity

_HTTPS_PORT: Final = 443
_CLOSE_SECONDS: Final = 1.0
_REQUEST: Final = "read the certificate of the API server"


async def fetch_server_identity(
    server: str, tls: ssl.SSLContext | None, *, server_name: str, deadline_seconds: float
) -> ServerIdentity:
    """Return the identity in the server's certificate, on a new connection. Raises Unreachable.

    `server_name` is the name for which the certificate is verified, "" = the host of the URL.
    """
    if tls is None:
        raise Unreachable(f"{server} is plain HTTP and presents no certificate: use https", request=_REQUEST)
    url = urlsplit(server)
    host = url.hostname or ""
    try:
        async with asyncio.timeout(deadline_seconds):
            certificate = await _certificate(host, url.port or _HTTPS_PORT, tls, server_name or host)
        return parse_server_identity(certificate, host=host)
    except (OSError, TimeoutError, ValueError) as error:  # ssl.SSLError is an OSError
        why = str(error) or type(error).__name__
        raise Unreachable(f"cannot read the certificate of {server}: {why}", request=_REQUEST) from error


async def _certificate(host: str, port: int, tls: ssl.SSLContext, server_name: str) -> bytes:
    _, writer = await asyncio.open_connection(host, port, ssl=tls, server_hostname=server_name)
    try:
        connection = writer.get_extra_info("ssl_object")
        return connection.getpeercert(binary_form=True) or b""
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await writer.wait_closed()
