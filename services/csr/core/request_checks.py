"""Checks for permanent faults, which depend on the request alone and not on the requester."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

from libs.common.contract.dns_names import MAX_NAME_LENGTH, find_name_problem
from libs.common.contract.ip_addresses import is_global_unicast
from libs.common.contract.networks import NetworkSet, parse_foreign_network
from libs.common.contract.signing_request import NODE_USER_PREFIX, NODES_GROUP, SigningRequest
from services.csr.core.certificate_request import CertificateRequest, quote_untrusted
from services.csr.core.decision import ApprovalPolicy, Check, Ignore

_REQUIRED_USAGES: Final = frozenset({"digital signature", "server auth"})
_ALLOWED_USAGES: Final = _REQUIRED_USAGES | {"key encipherment"}
# RFC 1123, as the API server validates it
_NODE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?\Z")
_MAX_LISTED: Final = 3  # values shown of a list


def find_ignore(request: SigningRequest) -> Ignore | None:
    """Return why csr never decides such a request; None for a node's own serving certificate."""
    user = quote_untrusted(request.spec.username)
    if not request.is_kubelet_serving:
        return Ignore(
            reason=f"signer {quote_untrusted(request.spec.signer_name)} and user {user} are not ours"
        )
    if not _NODE_NAME.match(request.node_name) or len(request.node_name) > MAX_NAME_LENGTH:
        return Ignore(reason=f"user {user} has the name of no possible Node")
    if NODES_GROUP not in request.spec.groups:
        return Ignore(reason=f"user {user} is not in group {NODES_GROUP}")
    return None


def check_request(
    request: SigningRequest, requested: CertificateRequest, policy: ApprovalPolicy
) -> Iterator[Check]:
    """Yield the permanent checks; each passes or fails, and no change of the cluster alters the result."""
    problems: dict[str, str] = {}
    for name, problem in _find_problems(request, requested, policy):
        problems.setdefault(name, problem)
    for name, passed_text in PASSED_TEXTS.items():
        yield Check(name=name, passed=name not in problems, text=problems.get(name, passed_text))


def find_address_problem(text: str, service_networks: tuple[str, ...] = ()) -> str | None:
    """Return why no node may have that address in a certificate, even if attested; None if allowed."""
    ip = ip_address(text)
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        return f"IP address {text} is IPv4-mapped: a Go client would take it for {ip.ipv4_mapped}"
    if not is_global_unicast(ip):
        return f"IP address {text} is not a unicast address that others can reach"
    if is_in_networks(text, service_networks):
        # The first address is the API server's, and pods may trust the signer's CA to authenticate it.
        return f"IP address {text} is a Service's"
    return None


def is_in_networks(ip: str, cidrs: tuple[str, ...]) -> bool:
    """Whether the address is in one of these networks; invalid ones contain none."""
    address = parse_foreign_network(ip)
    return address is not None and _parse_networks(cidrs).find_overlap(address) is not None


_parse_networks = lru_cache(maxsize=8)(NetworkSet)


def format_list(values: tuple[str, ...]) -> str:
    """Join the first few values, which must already be quoted if untrusted."""
    more = f" and {len(values) - _MAX_LISTED} more" if len(values) > _MAX_LISTED else ""
    return ", ".join(values[:_MAX_LISTED]) + more


def _find_problems(
    request: SigningRequest, requested: CertificateRequest, policy: ApprovalPolicy
) -> Iterator[tuple[str, str]]:
    """Yield each failed check and why it failed; the first reason of a check counts."""
    yield from (("request", problem) for problem in requested.problems)
    if requested.key_problem:
        yield "key", requested.key_problem
    if requested.is_signature_valid is None:
        yield "signature", "its signature was not verified"
    elif not requested.is_signature_valid:
        yield "signature", "its signature is not by the key in it"
    yield from (("subject", problem) for problem in _find_subject_problems(request.node_name, requested))
    if requested.other_sans:
        yield "kinds", f"asks for {format_list(requested.other_sans)}"
    if not requested.dns_names and not requested.ips:
        yield "any", "asks for no DNS name and no IP address"
    for dns in requested.dns_names:
        if problem := find_name_problem(dns, request.node_name, policy.api_endpoint.cluster_domains):
            yield "names", f"DNS name {quote_untrusted(dns)} {problem}"
    for ip in requested.ips:
        if address_problem := find_address_problem(ip, policy.service_networks or ()):
            yield "addresses", address_problem
    yield from _find_spec_problems(request, policy)


def _find_subject_problems(node_name: str, requested: CertificateRequest) -> Iterator[str]:
    expected = NODE_USER_PREFIX + node_name
    if requested.common_names != (expected,):
        names = _quote_list(requested.common_names) or "none"
        yield f"its common name is {names}, not that of the requester, {quote_untrusted(expected)}"
    if requested.organizations != (NODES_GROUP,):
        names = _quote_list(requested.organizations) or "none"
        yield f"its organization is {names}, not exactly {NODES_GROUP}"
    if others := requested.other_subject_attributes:
        yield f"its subject has more than a common name and an organization: {format_list(others)}"


def _find_spec_problems(request: SigningRequest, policy: ApprovalPolicy) -> Iterator[tuple[str, str]]:
    usages = frozenset(request.spec.usages)
    if missing := sorted(_REQUIRED_USAGES - usages):
        yield "usages", f"its usages lack {', '.join(missing)}"
    if more := sorted(usages - _ALLOWED_USAGES):
        yield "usages", f"its usages have {_quote_list(more)}"
    seconds = request.spec.expiration_seconds
    least, most = policy.min_expiration_seconds, policy.max_expiration_seconds
    if seconds is not None and least is not None and seconds < least:
        yield "expiration", f"expirationSeconds {seconds} is less than {least}, the minimum here"
    if seconds is not None and most is not None and seconds > most:
        yield "expiration", f"expirationSeconds {seconds} is more than {most}, the maximum here"


def _quote_list(values: Sequence[str]) -> str:
    return format_list(tuple(map(quote_untrusted, values)))


PASSED_TEXTS: Final = {
    "request": "it is one well-formed PKCS #10 request",
    "key": "the type and size of its key are accepted",
    "signature": "it is signed by the key in it",
    "subject": "its subject is the requester's",
    "usages": "its usages are those of a serving certificate",
    "kinds": "it asks for DNS names and IP addresses only",
    "any": "it asks for at least one of them",
    "names": "no DNS name is forbidden to nodes",
    "addresses": "no IP address is forbidden to nodes",
    "expiration": "its expirationSeconds are within bounds, or not given",
}
