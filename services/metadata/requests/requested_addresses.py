"""The IP addresses in a request, and whether its machine reports them."""

import ipaddress
import warnings

from cryptography import x509

from libs.common.contract.ip_addresses import canonical_ip
from libs.common.contract.machine import MachineFacts
from libs.common.contract.public_addresses import counts
from libs.common.contract.signing_request import SigningRequest


def lacks_requested_address(request: SigningRequest, facts: MachineFacts) -> bool:
    """Return whether the request contains an address that the machine does not have, or not yet."""
    reported = {canonical_ip(status.address) for status in facts.addresses if counts(status, facts)}
    return not parse_requested_addresses(request) <= reported


def parse_requested_addresses(request: SigningRequest) -> frozenset[str]:
    """Return the IP SANs in canonical form; none if the request cannot be parsed. Never raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unusual encodings; csr reports them
            extensions = x509.load_pem_x509_csr(request.spec.request).extensions
            names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            found = names.get_values_for_type(x509.IPAddress)
    except Exception:  # noqa: BLE001 - hostile bytes: the parser raises more errors than it documents
        return frozenset()
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise  # a signal or the exit of the process
        return frozenset()  # PanicException: a failed assertion in the parser, which stays usable
    return frozenset(
        canonical_ip(str(ip)) for ip in found if isinstance(ip, ipaddress.IPv4Address | ipaddress.IPv6Address)
    )
