"""Certificate requests of kubelets, and certificates of servers."""

import functools
from datetime import timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from libs.common.contract.signing_request import REQUEST_LIMIT
from libs.common.kube.server_identity import parse_server_identity
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
