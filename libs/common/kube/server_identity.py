"""The names and addresses in the serving certificate of an API server, read by a TLS handshake."""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import msgspec

from libs.common.contract.ip_addresses import parse_ip
from libs.common.kube.errors import Unreachable
from libs.common.kube.transport import Transport

_HTTPS_PORT: Final = 443
_CLOSE_SECONDS: Final = 1.0
_REQUEST: Final = "read the certificate of the API server"
_SHOWN: Final = 200  # characters of a parser's message


class ServerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of one API server, or of a load balancer that terminates TLS."""

    names: frozenset[str] = frozenset()  # in lower case
    addresses: frozenset[str] = frozenset()  # in canonical form


async def fetch_server_identity(transport: Transport) -> ServerIdentity:
    """Return the identity in the server's current certificate, on a new connection.

    Raises Unauthorized or Unreachable, the latter also behind a proxy: the handshake would go past it.
    """
    config = transport.config
    if config.proxy_url:
        raise Unreachable(f"{config.source}: proxy-url hides the certificate of the API server")
    await transport.open_session(_REQUEST)  # for its credentials
    server, tls = config.server, transport.credentials.tls
    if tls is None:
        raise Unreachable(f"{server} is plain HTTP and presents no certificate: use https", request=_REQUEST)
    url = urlsplit(server)
    host = url.hostname or ""
    try:
        async with asyncio.timeout(transport.deadline_seconds):
            certificate = await _certificate(
                host, url.port or _HTTPS_PORT, tls, config.tls_server_name or host
            )
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


def parse_server_identity(certificate: bytes, *, host: str) -> ServerIdentity:
    """Return the subject alternative names of a DER certificate, and the host by which it was reached.

    Wildcards are ignored: `*.example.com` in a load balancer's certificate would cover the host names of
    machines. Raises ValueError, and no other exception, for an invalid certificate.
    """
    names, addresses = set[str](), set[str]()
    for text in (host, *_names_in(certificate)):
        ip = parse_ip(text)
        if ip is not None:
            addresses.add(str(ip))
        elif text and "*" not in text:
            names.add(text.lower().rstrip("."))
    return ServerIdentity(names=frozenset(names), addresses=frozenset(addresses))


def _names_in(certificate: bytes) -> tuple[str, ...]:
    try:
        return tuple(_alternative_names(certificate))
    except Exception as error:
        # The parser does not document its exceptions: InvalidVersion, DuplicateExtension and
        # UnsupportedGeneralNameType (x400Address, ediPartyName) are plain Exceptions.
        text = f"{type(error).__name__}: {ascii(str(error))[:_SHOWN]}"
        raise ValueError(f"its certificate cannot be read: {text}") from error


def _alternative_names(certificate: bytes) -> Iterator[str]:
    from cryptography import x509  # noqa: PLC0415 - 11 MB, and each service imports this module, but only csr calls it

    extensions = x509.load_der_x509_certificate(certificate).extensions
    for extension in extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            yield from extension.value.get_values_for_type(x509.DNSName)
            yield from map(str, extension.value.get_values_for_type(x509.IPAddress))
