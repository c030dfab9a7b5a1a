"""The addresses that a request for a certificate asks for. Whether it is a proper one is not judged here."""

import ipaddress
import warnings

from cryptography import x509

from libs.common.contract.node_ips import parse_ip
from libs.common.contract.signing_request import SigningRequest


def parse_requested_addresses(request: SigningRequest) -> frozenset[str]:
    """IP SANs in their canonical text; empty for what nobody can read. Never raises, whatever the bytes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd encodings; who decides is told of them
            extensions = x509.load_pem_x509_csr(request.spec.request).extensions
            names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            found = names.get_values_for_type(x509.IPAddress)
    except Exception:  # noqa: BLE001 - hostile bytes: the parser has more ways to refuse than it names
        return frozenset()
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise  # a signal, the end of the process
        return frozenset()  # PanicException: a broken assertion inside the parser, which goes on
    return frozenset(
        str(parse_ip(str(ip)))
        for ip in found
        if isinstance(ip, ipaddress.IPv4Address | ipaddress.IPv6Address)
    )
