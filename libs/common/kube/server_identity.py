"""The names and addresses that an API server proves to its clients: those in its serving certificate."""

from collections.abc import Iterator
from typing import Final

import msgspec
from cryptography import x509

from libs.common.contract.ip_addresses import parse_ip

_SHOWN: Final = 200  # characters of a parser's message


class ServerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One API server, or a load balancer that ends TLS in front of it."""

    names: frozenset[str] = frozenset()  # in lower case
    addresses: frozenset[str] = frozenset()  # in canonical form


def parse_server_identity(certificate: bytes, *, host: str) -> ServerIdentity:
    """The subject alternative names of a certificate in DER, and the host by which it was reached.

    Wildcards are left out: `*.example.com` in a load balancer's certificate would cover the host names of
    machines. Raises ValueError, and nothing else, for bytes that cannot be read as a certificate.
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
        # The parser documents no list of what it raises: InvalidVersion, DuplicateExtension and
        # UnsupportedGeneralNameType (x400Address, ediPartyName) are plain Exceptions.
        raise _unreadable(error) from error
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise  # a signal, the end of the process
        raise _unreadable(error) from error  # PanicException: a broken assertion inside the parser


def _unreadable(error: BaseException) -> ValueError:
    return ValueError(f"its certificate cannot be read: {type(error).__name__}: {ascii(str(error))[:_SHOWN]}")


def _alternative_names(certificate: bytes) -> Iterator[str]:
    extensions = x509.load_der_x509_certificate(certificate).extensions
    for extension in extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            yield from extension.value.get_values_for_type(x509.DNSName)
            yield from map(str, extension.value.get_values_for_type(x509.IPAddress))
