"""Checks for permanent faults, which depend on the request alone and not on the requester."""

import re
from collections.abc import Iterator
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from libs.common.contract.dns_names import MAX_NAME_LENGTH, find_name_problem
from libs.common.contract.ip_addresses import is_global_unicast
from libs.common.contract.signing_request import NODE_USER_PREFIX, NODES_GROUP, SigningRequest
from services.csr.certificate_request import CertificateRequest, quote_untrusted
from services.csr.decision import ApprovalPolicy, Check

_REQUIRED_USAGES: Final = frozenset({"digital signature", "server auth"})
_ALLOWED_USAGES: Final = _REQUIRED_USAGES | {"key encipherment"}
# RFC 1123, as the API server validates it
_NODE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?\Z")
_MAX_LISTED: Final = 3  # values shown of a list


def explain_ignored(request: SigningRequest) -> str:
    """Return why csr never decides such a request; "" for a node's own serving certificate."""
    if not request.is_kubelet_serving:
        return (
            f"signer {quote_untrusted(request.spec.signer_name)} and user "
            f"{quote_untrusted(request.spec.username)} are not ours"
        )
    if not _NODE_NAME.match(request.node_name) or len(request.node_name) > MAX_NAME_LENGTH:
        return f"user {quote_untrusted(request.spec.username)} has the name of no possible Node"
    if NODES_GROUP not in request.spec.groups:
        return f"user {quote_untrusted(request.spec.username)} is not in group {NODES_GROUP}"
    return ""


def check_request(
    request: SigningRequest, requested: CertificateRequest, policy: ApprovalPolicy
) -> Iterator[Check]:
    """Yield the permanent checks; each passes or fails, and no change of the cluster alters the result."""
    domains = policy.api_endpoint.cluster_domains
    checks = {
        "request": next(iter(requested.problems), ""),
        "key": requested.key_problem,
        "signature": _find_signature_problem(requested),
        "subject": _find_subject_problem(request.node_name, requested),
        "usages": _find_usage_problem(frozenset(request.spec.usages)),
        "kinds": f"asks for {format_list(requested.other_sans)}" if requested.other_sans else "",
        "any": "" if requested.dns_names or requested.ips else "asks for no DNS name and no IP address",
        "names": _first_problem(
            _describe_name_problem(dns, request.node_name, domains) for dns in requested.dns_names
        ),
        "addresses": _first_problem(
            find_address_problem(ip, policy.service_networks or ()) for ip in requested.ips
        ),
        "expiration": _find_expiration_problem(request.spec.expiration_seconds, policy),
    }
    for name, problem in checks.items():
        yield Check(name=name, passed=not problem, text=problem or _PASSED_TEXTS[name])


def find_address_problem(text: str, service_networks: tuple[str, ...] = ()) -> str:
    """Return why no node may have that address in a certificate, even if attested; "" if allowed."""
    ip = ip_address(text)
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        return f"IP address {text} is IPv4-mapped: a Go client would take it for {ip.ipv4_mapped}"
    if not is_global_unicast(ip):
        return f"IP address {text} is not a unicast address that others can reach"
    if any(ip in network for network in parse_networks(service_networks)):
        # The first address is the API server's, and pods may trust the signer's CA to authenticate it.
        return f"IP address {text} is a Service's"
    return ""


@lru_cache(maxsize=8)
def parse_networks(cidrs: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    """Parse these CIDRs; invalid ones are left out."""
    return tuple(network for text in cidrs if (network := _parse_network(text)) is not None)


def _parse_network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def format_list(values: tuple[str, ...]) -> str:
    """Join the first few values, which must already be quoted if untrusted."""
    more = f" and {len(values) - _MAX_LISTED} more" if len(values) > _MAX_LISTED else ""
    return ", ".join(values[:_MAX_LISTED]) + more


def _find_signature_problem(requested: CertificateRequest) -> str:
    if requested.is_signature_valid is None:
        return "its signature was not verified"
    return "" if requested.is_signature_valid else "its signature is not by the key in it"


def _find_subject_problem(node_name: str, requested: CertificateRequest) -> str:
    expected = NODE_USER_PREFIX + node_name
    if requested.common_names != (expected,):
        names = format_list(tuple(quote_untrusted(name) for name in requested.common_names)) or "none"
        return f"its common name is {names}, not that of the requester, {quote_untrusted(expected)}"
    if requested.organizations != (NODES_GROUP,):
        names = format_list(tuple(quote_untrusted(name) for name in requested.organizations)) or "none"
        return f"its organization is {names}, not exactly {NODES_GROUP}"
    if requested.other_subject_attributes:
        return (
            "its subject has more than a common name and an organization: "
            f"{format_list(requested.other_subject_attributes)}"
        )
    return ""


def _find_usage_problem(usages: frozenset[str]) -> str:
    missing, more = sorted(_REQUIRED_USAGES - usages), sorted(usages - _ALLOWED_USAGES)
    if missing:
        return f"its usages lack {', '.join(missing)}"
    return f"its usages have {format_list(tuple(map(quote_untrusted, more)))}" if more else ""


def _find_expiration_problem(seconds: int | None, policy: ApprovalPolicy) -> str:
    least, most = policy.min_expiration_seconds, policy.max_expiration_seconds
    if seconds is None:
        return ""
    if least is not None and seconds < least:
        return f"expirationSeconds {seconds} is less than {least}, the minimum here"
    if most is not None and seconds > most:
        return f"expirationSeconds {seconds} is more than {most}, the maximum here"
    return ""


def _describe_name_problem(dns: str, node_name: str, domains: frozenset[str]) -> str:
    problem = find_name_problem(dns, node_name, domains)
    return f"DNS name {quote_untrusted(dns)} {problem}" if problem else ""


def _first_problem(problems: Iterator[str]) -> str:
    return next((problem for problem in problems if problem), "")


_PASSED_TEXTS: Final = {
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
