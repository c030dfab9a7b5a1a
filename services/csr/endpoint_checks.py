"""What a node may not have although its machine reports it: it belongs to Services or to the API server."""

from collections.abc import Iterator
from ipaddress import IPv4Interface, ip_interface

from libs.common.contract.machine import AddressStatus, MachineFacts
from libs.common.contract.node import CONTROL_PLANE_LABEL, Node
from libs.common.contract.public_addresses import EXTERNAL_LINK
from services.csr.api_endpoint import ApiEndpoint
from services.csr.attested_identity import collect_attested_ips, normalize_ip
from services.csr.certificate_request import CertificateRequest, quote_untrusted
from services.csr.claim_index import parse_provided_ips
from services.csr.decision import ApprovalPolicy, Check

_NETWORKS_UNKNOWN = (
    "the cluster's Service networks are not known: {}, and --service-cluster-ip-range is not given"
)
_IN_CERTIFICATE = "is in the certificate of an API server"
_NOT_ATTESTED = ", and no machine attests it (no Talos): approve the request by hand if it is right"
_UNREPORTED_WITHOUT_TALOS = "with --without-talos no control plane reports them"
_NOT_REPORTED_YET = "no control plane has reported them yet"


def check_cluster_knowledge(
    requested: CertificateRequest, name: str, policy: ApprovalPolicy, *, without_talos: bool
) -> Iterator[Check]:
    """What must be known of the cluster before these names and addresses can be approved."""
    if requested.ips and policy.service_networks is None:
        text = _NETWORKS_UNKNOWN.format(_UNREPORTED_WITHOUT_TALOS if without_talos else _NOT_REPORTED_YET)
        yield _make_undecided("networks", text, name)
    if asks_for_more_than_name(requested, name) and not policy.api_endpoint.identities:
        why = f": {quote_untrusted(policy.api_endpoint.fault, 300)}" if policy.api_endpoint.fault else ""
        yield _make_undecided(
            "endpoint", f"the certificate of the API server has not been read yet{why}", name
        )


def asks_for_more_than_name(requested: CertificateRequest, name: str) -> bool:
    """Whether it may ask for a name or address of the API server: a Node may always have its own name."""
    return bool(requested.ips) or any(dns != name for dns in requested.dns_names)


def check_endpoint_name(dns: str, node: Node, api_endpoint: ApiEndpoint) -> Check | None:
    """Why `node` may not have an API server's host name; None if it may, or if it is no such name.

    A control plane gets a full name below its node name, if its machine attests that.
    """
    if not api_endpoint.has_name(dns):
        return None
    if not _is_below(dns, node.name):
        return _deny_name(dns)
    if is_control_plane(node):
        return None
    return _make_undecided(
        "endpoint",
        f"DNS name {quote_untrusted(dns)} {_IN_CERTIFICATE}, {_describe_missing_label(node)}",
        node.name,
    )


def check_endpoint_address(
    ip: str, node: Node, facts: MachineFacts, answered_ips: frozenset[str], api_endpoint: ApiEndpoint
) -> Check | None:
    """Why `node` may not have an API server's address; None if it may, or if it is no such address.

    Its node IPs pass. A control plane also gets other addresses of its machine, but no virtual IP.
    `answered` are the addresses at which the machine answered.
    """
    if not api_endpoint.has_address(ip) or ip in _node_ips(node, facts, answered_ips):
        return None
    text = f"IP address {ip} {_IN_CERTIFICATE}"
    if not is_control_plane(node):
        text = (
            f"{text}, is no node IP at which the machine of {node.name} answered, "
            f"{_describe_missing_label(node)}"
        )
        return _make_undecided("endpoint", text, node.name)
    if _is_virtual_ip(ip, facts.addresses):
        text = f"{text} and looks like a virtual IP: a /32 inside the subnet of another address of its link"
        return _make_undecided("endpoint", text, node.name)
    return None


def check_endpoint_without_talos(
    name: str, api_endpoint: ApiEndpoint, *, dns: str = "", ip: str = ""
) -> Check | None:
    """The same for one DNS name or IP address that no machine can attest."""
    if dns and api_endpoint.has_name(dns):
        if not _is_below(dns, name):
            return _deny_name(dns)
        return _make_undecided(
            "endpoint", f"DNS name {quote_untrusted(dns)} {_IN_CERTIFICATE}{_NOT_ATTESTED}", name
        )
    if ip and api_endpoint.has_address(ip):
        return _make_undecided("endpoint", f"IP address {ip} {_IN_CERTIFICATE}{_NOT_ATTESTED}", name)
    return None


def is_control_plane(node: Node) -> bool:
    """Whether its Node has the label of control planes, which NodeRestriction keeps kubelets from writing."""
    return CONTROL_PLANE_LABEL in node.labels


def _describe_missing_label(node: Node) -> str:
    return f"and Node {node.name} has no label {CONTROL_PLANE_LABEL}"


def _is_below(dns: str, name: str) -> bool:
    return dns.lower().startswith(f"{name}.")


def _deny_name(dns: str) -> Check:
    return Check(name="endpoint", passed=False, text=f"DNS name {quote_untrusted(dns)} {_IN_CERTIFICATE}")


def _node_ips(node: Node, facts: MachineFacts, answered: frozenset[str]) -> frozenset[str]:
    """The node IPs that the machine is known to have.

    A kubelet writes the annotation, and a hostile machine attests anything. So attestation alone counts for
    control planes only; of any other Node the machine must have answered there.
    """
    known = answered | collect_attested_ips(facts) if is_control_plane(node) else answered
    return frozenset({normalize_ip(facts.node_ip)}) | (parse_provided_ips(node) & known)


def _is_virtual_ip(ip: str, statuses: tuple[AddressStatus, ...]) -> bool:
    """Whether it is an IPv4 /32 on a link that has another address in whose subnet it is.

    Talos sets a virtual IP like that. IPv6 is left out: DHCPv6 gives a /128 inside the link's /64, too.
    """
    own = [status for status in statuses if normalize_ip(status.address) == ip]
    if any(status.link == EXTERNAL_LINK or not _is_host_route(status) for status in own):
        return False
    links = {status.link for status in own}
    return any(_is_in_subnet(status, ip) for status in statuses if status.link in links and status not in own)


def _is_host_route(status: AddressStatus) -> bool:
    found = _parse_ipv4(status.address)
    return found is not None and found.network.prefixlen == found.max_prefixlen


def _is_in_subnet(status: AddressStatus, ip: str) -> bool:
    found, address = _parse_ipv4(status.address), _parse_ipv4(ip)
    return found is not None and address is not None and address.ip in found.network


def _parse_ipv4(text: str) -> IPv4Interface | None:
    try:
        found = ip_interface(text)
    except ValueError:
        return None
    return found if isinstance(found, IPv4Interface) else None


def _make_undecided(check: str, text: str, name: str) -> Check:
    return Check(name=check, passed=None, text=text, nodes=frozenset({name}))
