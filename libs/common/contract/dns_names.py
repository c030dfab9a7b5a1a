"""Which DNS names a node may have: the labeler adds no others to a Node, and csr approves no others."""

import re
from collections.abc import Collection
from typing import Final

from libs.common.contract.ip_addresses import parse_ip

MAX_NAME_LENGTH: Final = 253  # characters of a DNS name
# The default domain, and that of the Multi-Cluster Services API (KEP-1645). csr reads others from the
# certificate of the API server.
_KNOWN_DOMAINS: Final = frozenset({"", "cluster.local", "clusterset.local"})
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\Z", re.IGNORECASE | re.ASCII)
_NUMBER: Final = re.compile(r"([0-9]+|0x[0-9a-f]*)\Z", re.IGNORECASE | re.ASCII)


def find_name_problem(dns: str, node_name: str, cluster_domains: Collection[str] = ()) -> str:
    """Return why no node may have that name, even if attested, such as "is a wildcard"; "" if allowed."""
    lower = dns.lower().rstrip(".")
    if "*" in dns:
        return "is a wildcard"
    if lower == "kubernetes" or lower.startswith("kubernetes."):
        return "is the API server's"
    if not _KNOWN_DOMAINS.union(cluster_domains).isdisjoint(_list_service_domains(lower)):
        return "is a Service's or a pod's"
    if lower == "localhost" or lower.endswith(".localhost"):
        return "is every host's"
    labels = dns.split(".")
    if len(dns) > MAX_NAME_LENGTH or not all(_LABEL.match(label) for label in labels):
        return "is no host name"
    if parse_ip(dns) is not None or (_NUMBER.match(labels[-1]) and dns != node_name):
        # some clients parse 10.1 or 0x7f000001 as an address
        return "is an address"
    return ""


def has_service_form(dns: str) -> bool:
    """Whether the name is a Service's or a pod's if the rest of it is the domain of the cluster."""
    return bool(_list_service_domains(dns.lower()))


def may_be_short_service_name(dns: str, node_name: str) -> bool:
    """Whether a pod may mean a Service by that name: one or two labels, the first not that of the node.

    The search list of a pod completes `<service>` and `<service>.<namespace>`.
    """
    labels = dns.lower().split(".")
    return len(labels) <= 2 and labels[0] != node_name.partition(".")[0]


def is_node_dns_name(dns: str, node_name: str) -> bool:
    """Whether csr approves an attested name in a cluster of any domain, unless others have the name."""
    return not (
        find_name_problem(dns, node_name)
        or has_service_form(dns)
        or may_be_short_service_name(dns, node_name)
    )


def _list_service_domains(lower: str) -> list[str]:
    """Return what follows each `<a>.<b>.svc` and `<a>.<b>.pod` in the name; "" at its end."""
    labels = lower.split(".")
    ends = (at + 1 for at, label in enumerate(labels) if at >= 2 and label in ("svc", "pod"))
    return [".".join(labels[end:]) for end in ends]
