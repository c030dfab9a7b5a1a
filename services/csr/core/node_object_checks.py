"""Checks a request against its Node object alone, where metadata queries no machine.

The kubelet itself writes the Node object. So an address counts only within networks that the operator
configures, and only if no other Node has it.
"""

from collections.abc import Iterator

from libs.common.contract.node import Node
from services.csr.core.attestation import check_pod_cidrs
from services.csr.core.certificate_request import CertificateRequest, quote_untrusted
from services.csr.core.claim_index import ClaimIndex, collect_object_ips, collect_object_names
from services.csr.core.decision import ApprovalPolicy, Check, make_undecided
from services.csr.core.endpoint_checks import check_endpoint_without_talos
from services.csr.core.request_checks import is_in_networks


def check_against_node_object(
    name: str, requested: CertificateRequest, claim_index: ClaimIndex, policy: ApprovalPolicy
) -> Iterator[Check]:
    """Check the Node first; if it exists, check each name and each address separately."""
    node = claim_index.get_node(name)
    if node is None:
        yield make_undecided("node", f"there is no Node {name} yet", name)
        return
    if not policy.allowed_networks:
        yield make_undecided(
            "no-talos", "no machine is queried (no Talos), and --csr-allowed-networks is not given", name
        )
        return
    for dns in requested.dns_names:
        reserved = None if dns == name else check_endpoint_without_talos(name, policy.api_endpoint, dns=dns)
        yield reserved or _check_name(dns, node, claim_index)
    for ip in requested.ips:
        reserved = check_endpoint_without_talos(name, policy.api_endpoint, ip=ip)
        yield reserved or _check_address(ip, node, claim_index, policy.allowed_networks)


def _check_name(dns: str, node: Node, claim_index: ClaimIndex) -> Check:
    what, name = f"DNS name {quote_untrusted(dns)}", node.name
    if dns == name:
        return Check(name="names", passed=True, text=f"{what} is the node's name")
    lower, others = dns.lower(), tuple(c.node for c in claim_index.find_by_name(dns) if c.node != name)
    theirs = f"{what} is Node {lower}'s own name" if lower in others else ""
    if not lower.startswith(name + "."):
        return Check(name="names", passed=False, text=theirs or f"{what} is neither {name} nor below it")
    if lower not in collect_object_names(node):
        return make_undecided("names", f"{what} is not in the status of Node {name} (yet)", name)
    if theirs:
        return make_undecided("rivals", theirs, name, lower)
    return _check_rivals(what, "names", name, others)


def _check_address(ip: str, node: Node, claim_index: ClaimIndex, networks: tuple[str, ...]) -> Check:
    what, name = f"IP address {ip}", node.name
    if not is_in_networks(ip, networks):
        return Check(name="addresses", passed=False, text=f"{what} is not within --csr-allowed-networks")
    if ip not in collect_object_ips(node):
        return make_undecided("addresses", f"{what} is not in the status of Node {name} (yet)", name)
    return check_pod_cidrs(ip, node, claim_index) or _check_rivals(
        what, "addresses", name, tuple(c.node for c in claim_index.find_by_address(ip) if c.node != name)
    )


def _check_rivals(what: str, check: str, name: str, others: tuple[str, ...]) -> Check:
    if not others:
        return Check(name=check, passed=True, text=f"{what} is in the Node object, and in no other")
    text = f"{what} is in the status of Node {others[0]}, too"
    return Check(name="rivals", passed=None, text=text, nodes=frozenset({name, *others}), rivals=others)
