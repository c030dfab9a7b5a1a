"""Bytes of kubelets and of clients of the health port: certificate requests, certificates, HTTP."""

import asyncio
import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from libs.common.contract.signing_request import REQUEST_LIMIT
from libs.common.kube.server_identity import parse_server_identity
from libs.common.service.health import Readiness, make_health_application
from libs.common.service.web_listener import WebListener
from libs.testbed.child_process import HANG_SECONDS
from services.csr.core.certificate_request import (
    MAX_SANS,
    CertificateRequest,
    MalformedRequest,
    parse_request,
)
from services.metadata.core.contested_addresses import parse_requested_addresses
from tests.builders import NOW, make_request
from tests.csr_der import (
    ORGANIZATION,
    RequestFields,
    encode_directory_name,
    encode_dns_name,
    encode_email,
    encode_ip,
    encode_other_name,
    encode_pem,
    encode_registered_id,
    encode_rsa_key,
    encode_unsigned_request,
    encode_uri,
    get_key,
)
from tests.fuzz.target import Target


def _health_port(data: bytes) -> None:
    with _collect_log_lines() as lines:
        asyncio.run(_send(data))
    assert not lines, lines


@contextmanager
def _collect_log_lines() -> Iterator[list[str]]:
    """Collect what aiohttp logs: a client must not be able to fill the log."""
    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("aiohttp.server")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


async def _send(data: bytes) -> None:
    """The server closes the connection, and afterwards it answers the next client."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    server = WebListener(make_health_application(Readiness(asyncio.get_running_loop().time)), None)
    port = await server.start("127.0.0.1", 0, flag="--secure-port")
    try:
        await _exchange(port, data, patience_seconds=0.01)
        request = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
        answer = await _exchange(port, request, patience_seconds=10)
        assert answer.startswith(b"HTTP/1.1 200 "), answer
    finally:
        await server.stop()
    assert not errors, errors


async def _exchange(port: int, data: bytes, *, patience_seconds: float) -> bytes:
    """Send the bytes and return what the server sent until it closed the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        try:
            async with asyncio.timeout(patience_seconds):
                return await reader.read()
        except TimeoutError:
            writer.write_eof()  # half of a request: the server need not wait for its own timeout
        async with asyncio.timeout(HANG_SECONDS):
            return await reader.read()
    except ConnectionError:
        return b""  # the server closed the connection before it had read everything
    finally:
        writer.close()


_HEALTH_TARGETS: Final = (
    Target(
        name="health-port",
        format="http",
        run=_health_port,
        seeds=lambda: (
            b"GET /readyz?verbose HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n",
            b"POST /healthz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nabc",
        ),
        max_bytes=80 * 1024,
        examples=15,
    ),
)


def _pem_request(data: bytes) -> None:
    read = parse_request(data)
    if isinstance(read, MalformedRequest):
        assert read.reason.isprintable()
        return
    assert isinstance(read, CertificateRequest)
    assert len(read.dns_names) + len(read.ips) + len(read.other_sans) <= MAX_SANS
    assert all(
        len(text) < 1024 and text.isprintable() for text in (*read.other_sans, read.key, read.key_problem)
    )


def _requested_addresses(pem: bytes) -> None:
    assert "" not in parse_requested_addresses(make_request(pem=pem))


def _server_certificate(data: bytes) -> None:
    identity = parse_server_identity(data, host="10.0.0.1")
    assert not any("*" in name for name in identity.names)


@functools.cache
def _requests() -> tuple[bytes, ...]:
    names = (encode_dns_name("web-1"), encode_ip("10.0.0.5"), encode_ip("fd00:7::5"))
    other = (
        encode_email("a@b"),
        encode_uri("spiffe://a"),
        encode_directory_name(((ORGANIZATION, "o"),)),
        encode_other_name("1.2.3", "x"),
        encode_registered_id("1.2.3.4"),
    )
    return (
        RequestFields(sans=names).sign(),
        RequestFields(sans=(*names, *other), key="Ed25519").sign(),
        encode_unsigned_request(encode_rsa_key(2**2047 + 12345, 65537), RequestFields(sans=names)),
    )


@functools.cache
def encode_self_signed() -> tuple[bytes, bytes]:
    """A certificate and its key, in PEM."""
    name = x509.Name.from_rfc4514_string("CN=a,O=os:reader")
    key = get_key("Ed25519")
    builder = x509.CertificateBuilder(name, name, key.public_key(), 7, NOW, NOW + timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.DNSName("a.example"), x509.DNSName("*.example")])
    certificate = builder.add_extension(names, critical=False).sign(key, None)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), private


def _certificates() -> tuple[bytes, ...]:
    return (x509.load_pem_x509_certificate(encode_self_signed()[0]).public_bytes(Encoding.DER),)


_der_target = functools.partial(Target, format="der", seeds=_requests, max_bytes=2 * REQUEST_LIMIT)
TARGETS: Final = (
    *_HEALTH_TARGETS,
    Target(name="csr-pem", format="der", run=_pem_request, seeds=lambda: tuple(map(encode_pem, _requests()))),
    _der_target(name="csr-der", run=lambda der: _pem_request(encode_pem(der))),
    _der_target(name="csr-addresses", run=lambda der: _requested_addresses(encode_pem(der))),
    Target(
        name="server-certificate",
        format="der",
        run=_server_certificate,
        seeds=_certificates,
        errors=(ValueError,),
    ),
)
