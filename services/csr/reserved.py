"""What a node may not have although its machine reports it: it belongs to Services or to the API server."""

from collections.abc import Iterator
from ipaddress import IPv4Interface, ip_interface

from libs.common.machine import AddressStatus, MachineFacts
from libs.common.public_addresses import EXTERNAL_LINK
from services.csr.attested import bare
from services.csr.endpoint import Endpoint
from services.csr.judgement import Check, Policy
from services.csr.request import Asked, shown

_NETWORKS = "the cluster's Service networks are not known: {}, and --service-cluster-ip-range is not given"
_NOBODY_TELLS = "with --without-talos no control plane reports them"
_NOT_YET = "no control plane has reported them yet"


def checks_of_knowledge(asked: Asked, name: str, policy: Policy, *, without_talos: bool) -> Iterator[Check]:
    """What must be known of the cluster before these names and addresses can be approved."""
    if asked.ips and policy.service_networks is None:
        text = _NETWORKS.format(_NOBODY_TELLS if without_talos else _NOT_YET)
        yield _waits("networks", text, name)
    asks_for_more = bool(asked.ips) or any(dns != name for dns in asked.dns_names)
    if asks_for_more and not policy.endpoint.identities:
        why = f": {shown(policy.endpoint.fault, 300)}" if policy.endpoint.fault else ""
        yield _waits("endpoint", f"the certificate of the API server has not been read yet{why}", name)


def check_of_endpoint_name(dns: str, name: str, facts: MachineFacts, endpoint: Endpoint) -> Check | None:
    """Why Node `name` may not have an API server's host name; None if it may, or if it is no such name.

    Its own full name passes on the machine of the API server whose certificate has it.
    """
    owners = endpoint.owners_of_name(dns)
    node_ip = bare(facts.node_ip)
    is_below_own = dns.lower().startswith(f"{name}.")
    if not owners or (is_below_own and all(node_ip in owner.addresses for owner in owners)):
        return None
    return _refused_name(dns, name, is_below_own=is_below_own)


def check_of_endpoint_address(ip: str, name: str, facts: MachineFacts, endpoint: Endpoint) -> Check | None:
    """Why Node `name` may not have an API server's address; None if it may, or if it is no such address.

    The node IP at which its machine answers passes. Other addresses of the machine pass if it is the only
    API server whose certificate has them, unless they look like a virtual IP.
    """
    owners, node_ip = endpoint.owners_of_address(ip), bare(facts.node_ip)
    if not owners or ip == node_ip:
        return None
    text = f"IP address {ip} belongs to the API server, by its certificate, and is not the node IP of {name}"
    if not all(node_ip in owner.addresses for owner in owners):
        return _waits("endpoint", text, name)
    if _is_virtual_ip(ip, facts.addresses):
        return _waits("endpoint", f"{text}: it looks like a virtual IP", name)
    return None


def check_of_endpoint_without_talos(
    name: str, endpoint: Endpoint, *, dns: str = "", ip: str = ""
) -> Check | None:
    """The same for one DNS name or IP address that no machine can attest."""
    if dns and endpoint.owners_of_name(dns):
        return _refused_name(dns, name, is_below_own=dns.lower().startswith(f"{name}."))
    if ip and endpoint.owners_of_address(ip):
        text = f"IP address {ip} belongs to the API server, by its certificate, and no machine attests it"
        return _waits("endpoint", f"{text} (no Talos): approve the request by hand if it is right", name)
    return None


def _refused_name(dns: str, name: str, *, is_below_own: bool) -> Check:
    text = f"DNS name {shown(dns)} belongs to the API server, by its certificate"
    if is_below_own:  # of a control plane whose API server has not presented its new certificate yet
        text += f", and the machine of {name} is not known to be that API server's"
        return _waits("endpoint", text, name)
    return Check(name="endpoint", passed=False, text=text)


def _is_virtual_ip(ip: str, statuses: tuple[AddressStatus, ...]) -> bool:
    """Whether it is an IPv4 /32 on a link that has another address in whose subnet it is.

    Talos sets a virtual IP like that. IPv6 is left out: DHCPv6 gives a /128 inside the link's /64, too.
    """
    own = [status for status in statuses if bare(status.address) == ip]
    if any(status.link == EXTERNAL_LINK or not _is_host_route(status) for status in own):
        return False
    links = {status.link for status in own}
    return any(_covers(status, ip) for status in statuses if status.link in links and status not in own)


def _is_host_route(status: AddressStatus) -> bool:
    found = _ipv4(status.address)
    return found is not None and found.network.prefixlen == found.max_prefixlen


def _covers(status: AddressStatus, ip: str) -> bool:
    found, address = _ipv4(status.address), _ipv4(ip)
    return found is not None and address is not None and address.ip in found.network


def _ipv4(text: str) -> IPv4Interface | None:
    try:
        found = ip_interface(text)
    except ValueError:
        return None
    return found if isinstance(found, IPv4Interface) else None


def _waits(check: str, text: str, name: str) -> Check:
    return Check(name=check, passed=None, text=text, nodes=frozenset({name}))
