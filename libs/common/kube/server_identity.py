"""The names and addresses in the serving certificate of an API server."""

from collections.abc import Iterator
from typing import Final

import msgspec

from libs.common.contract.ip_addresses import parse_ip

_SHOWN: Final = 200  # characters of a parser's message


class ServerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of one API server, or of a load balancer that terminates TLS."""

    names: frozenset[str] = frozenset()  # in lower case
    addresses: frozenset[str] = frozenset()  # in canonical form


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
        raise _unreadable(error) from error
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise  # a signal, or the exit of the process
        raise _unreadable(error) from error  # PanicException: a failed assertion in the parser


def _unreadable(error: BaseException) -> ValueError:
    return ValueError(f"its certificate cannot be read: {type(error).__name__}: {ascii(str(error))[:_SHOWN]}")


def _alternative_names(certificate: bytes) -> Iterator[str]:
    from cryptography import x509  # noqa: PLC0415 - 11 MB, and each service imports this module, but only csr calls it

    extensions = x509.load_der_x509_certificate(certificate).extensions
    for extension in extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            yield from extension.value.get_values_for_type(x509.DNSName)
            yield from map(str, extension.value.get_values_for_type(x509.IPAddress))
