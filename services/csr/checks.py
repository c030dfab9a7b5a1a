"""What is wrong with a request whoever asks: permanent faults, decided by the request alone."""

import re
from collections.abc import Iterator
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from libs.common.node_ips import is_global_unicast, parse_ip
from libs.common.signing_request import NODE_USER, NODES_GROUP, SigningRequest
from services.csr.judgement import Check, Policy
from services.csr.request import Asked, shown

_NEEDED: Final = frozenset({"digital signature", "server auth"})
_ALLOWED: Final = _NEEDED | {"key encipherment"}
_NAME_LIMIT: Final = 253  # of a DNS name
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\Z", re.IGNORECASE | re.ASCII)
_NODE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?\Z")  # RFC 1123, as the API server has it
_NUMBER: Final = re.compile(r"([0-9]+|0x[0-9a-f]*)\Z", re.IGNORECASE | re.ASCII)
_MANY: Final = 3  # values shown of a list


def why_not_ours(request: SigningRequest) -> str:
    """Why such a request is never touched, not even denied; "" for a node's own serving certificate."""
    if not request.is_kubelet_serving:
        return (
            f"signer {shown(request.spec.signer_name)} and user {shown(request.spec.username)} are not ours"
        )
    if not _NODE_NAME.match(request.node_name) or len(request.node_name) > _NAME_LIMIT:
        return f"user {shown(request.spec.username)} has the name of no possible Node"
    if NODES_GROUP not in request.spec.groups:
        return f"user {shown(request.spec.username)} is not in group {NODES_GROUP}"
    return ""


def checks_of_request(request: SigningRequest, asked: Asked, policy: Policy) -> Iterator[Check]:
    """Each of them passed or failed for ever."""
    checks = {
        "request": next(iter(asked.problems), ""),
        "key": asked.key_problem,
        "signature": _signature(asked),
        "subject": _subject(request.node_name, asked),
        "usages": _usages(frozenset(request.spec.usages)),
        "kinds": f"asks for {listed(asked.other_sans)}" if asked.other_sans else "",
        "any": "" if asked.dns_names or asked.ips else "asks for no DNS name and no IP address",
        "names": _first(why_no_name(dns, request.node_name) for dns in asked.dns_names),
        "addresses": _first(why_no_address(ip, policy.service_networks or ()) for ip in asked.ips),
        "expiration": _expiration(request.spec.expiration_seconds, policy),
    }
    for name, problem in checks.items():
        yield Check(name=name, passed=not problem, text=problem or _FINE[name])


def why_no_name(dns: str, node_name: str) -> str:
    """Why no node may have that name in a certificate, whatever its machine attests."""
    lower = dns.lower().rstrip(".")
    if "*" in dns:
        return f"DNS name {shown(dns)} is a wildcard"
    if lower == "kubernetes" or lower.startswith("kubernetes."):
        return f"DNS name {shown(dns)} is the API server's"
    if lower.endswith((".svc", ".svc.cluster.local")):
        return f"DNS name {shown(dns)} is a Service's"
    if lower == "localhost" or lower.endswith(".localhost"):
        return f"DNS name {shown(dns)} is every host's"
    labels = dns.split(".")
    if len(dns) > _NAME_LIMIT or not all(_LABEL.match(label) for label in labels):
        return f"DNS name {shown(dns)} is no host name"
    if parse_ip(dns) is not None or (_NUMBER.match(labels[-1]) and dns != node_name):
        return f"DNS name {shown(dns)} is an address"  # 10.1, 0x7f000001: some clients take them for one
    return ""


def why_no_address(text: str, service_networks: tuple[str, ...] = ()) -> str:
    """Why no node may have that address in a certificate, whatever its machine attests."""
    ip = ip_address(text)
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        return f"IP address {text} is IPv4-mapped: a Go client would take it for {ip.ipv4_mapped}"
    if not is_global_unicast(ip):
        return f"IP address {text} is not a unicast address that others can reach"
    if any(ip in network for network in networks_of(service_networks)):
        # the first of them is the API server's, and pods may trust the signer's CA to tell them who that is
        return f"IP address {text} is a Service's"
    return ""


@lru_cache(maxsize=8)
def networks_of(texts: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    """The networks in these texts; whatever is none is left out."""
    return tuple(network for text in texts if (network := _network(text)) is not None)


def _network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def listed(values: tuple[str, ...]) -> str:
    """A few values of somebody else's, in words; those of a request are shown already."""
    more = f" and {len(values) - _MANY} more" if len(values) > _MANY else ""
    return ", ".join(values[:_MANY]) + more


def _signature(asked: Asked) -> str:
    if asked.signature_valid is None:
        return "its signature was not looked at"
    return "" if asked.signature_valid else "its signature is not by the key in it"


def _subject(node_name: str, asked: Asked) -> str:
    expected = NODE_USER + node_name
    if asked.common_names != (expected,):
        names = listed(tuple(shown(name) for name in asked.common_names)) or "none"
        return f"its common name is {names}, not that of the requester, {shown(expected)}"
    if asked.organizations != (NODES_GROUP,):
        names = listed(tuple(shown(name) for name in asked.organizations)) or "none"
        return f"its organization is {names}, not exactly {NODES_GROUP}"
    if asked.other_subject:
        return f"its subject has more than a common name and an organization: {listed(asked.other_subject)}"
    return ""


def _usages(usages: frozenset[str]) -> str:
    missing, more = sorted(_NEEDED - usages), sorted(usages - _ALLOWED)
    if missing:
        return f"its usages lack {', '.join(missing)}"
    return f"its usages have {listed(tuple(map(shown, more)))}" if more else ""


def _expiration(seconds: int | None, policy: Policy) -> str:
    least, most = policy.min_expiration_seconds, policy.max_expiration_seconds
    if seconds is None:
        return ""
    if least is not None and seconds < least:
        return f"expirationSeconds {seconds} is less than {least}, the minimum here"
    if most is not None and seconds > most:
        return f"expirationSeconds {seconds} is more than {most}, the maximum here"
    return ""


def _first(problems: Iterator[str]) -> str:
    return next((problem for problem in problems if problem), "")


_FINE: Final = {
    "request": "it is one PKCS #10 request with nothing odd in it",
    "key": "its key is one that we accept",
    "signature": "it is signed by the key in it",
    "subject": "its subject is the requester's",
    "usages": "its usages are those of a serving certificate",
    "kinds": "it asks for DNS names and IP addresses only",
    "any": "it asks for at least one of them",
    "names": "no DNS name is forbidden to nodes",
    "addresses": "no IP address is forbidden to nodes",
    "expiration": "its expirationSeconds are within bounds, or not given",
}
