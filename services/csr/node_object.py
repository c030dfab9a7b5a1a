"""Whether a node is what its request asks for, where no machine is ever asked: by its Node object alone.

That is written by the kubelet itself, so it counts within networks that the operator names, and only if no
other Node says the same.
"""

from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address

from libs.common.node import Node
from services.csr.checks import networks_of
from services.csr.claims import Claims, Rank, written_ips, written_names
from services.csr.judgement import Check, Policy
from services.csr.request import Asked, shown
from services.csr.reserved import check_of_endpoint_without_talos


def checks_of_node_object(name: str, asked: Asked, claims: Claims, policy: Policy) -> Iterator[Check]:
    """The Node first; with it, each name and each address on its own."""
    node = claims.node(name)
    if node is None:
        yield _waits("node", f"there is no Node {name} yet", name)
        return
    if not policy.allowed_networks:
        yield _waits(
            "no-talos", "no machine is asked (no Talos), and no --csr-allowed-networks are given", name
        )
        return
    for dns in asked.dns_names:
        reserved = None if dns == name else check_of_endpoint_without_talos(name, policy.endpoint, dns=dns)
        yield reserved or _check_of_name(dns, node, claims)
    for ip in asked.ips:
        reserved = check_of_endpoint_without_talos(name, policy.endpoint, ip=ip)
        yield reserved or _check_of_address(ip, node, claims, networks_of(policy.allowed_networks))


def _check_of_name(dns: str, node: Node, claims: Claims) -> Check:
    what, name = f"DNS name {shown(dns)}", node.name
    if dns == name:
        return Check(name="names", passed=True, text=f"{what} is the node's name")
    others = tuple(claim for claim in claims.of_name(dns) if claim.node != name)
    owner = next((claim.node for claim in others if claim.rank is Rank.NODE_NAME), "")
    if owner:
        return Check(name="names", passed=False, text=f"{what} is Node {owner}'s own name")
    if not dns.lower().startswith(name + "."):
        return Check(name="names", passed=False, text=f"{what} is neither {name} nor below it")
    if dns.lower() not in written_names(node):
        return _waits("names", f"{what} is not in the status of Node {name} (yet)", name)
    return _alone(what, "names", name, tuple(claim.node for claim in others))


def _check_of_address(
    ip: str, node: Node, claims: Claims, networks: tuple[IPv4Network | IPv6Network, ...]
) -> Check:
    what, name = f"IP address {ip}", node.name
    if not any(ip_address(ip) in network for network in networks):
        return Check(name="addresses", passed=False, text=f"{what} is not within --csr-allowed-networks")
    if ip not in written_ips(node):
        return _waits("addresses", f"{what} is not in the status of Node {name} (yet)", name)
    return _alone(what, "addresses", name, tuple(c.node for c in claims.of_address(ip) if c.node != name))


def _alone(what: str, check: str, name: str, others: tuple[str, ...]) -> Check:
    if not others:
        return Check(name=check, passed=True, text=f"{what} is in the Node object, and in no other")
    text = f"{what} is in the status of Node {others[0]}, too"
    return Check(name="rivals", passed=None, text=text, nodes=frozenset({name, *others}), rivals=others)


def _waits(check: str, text: str, *nodes: str) -> Check:
    return Check(name=check, passed=None, text=text, nodes=frozenset(nodes))
