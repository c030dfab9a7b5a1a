"""Checks for names and addresses of Services and API servers, which a node may not have in a certificate."""

from collections.abc import Iterator
from ipaddress import IPv4Interface, ip_interface

from libs.common.contract.dns_names import has_service_form
from libs.common.contract.events import SERVICE_CIDRS_UNKNOWN
from libs.common.contract.ip_addresses import canonical_ip
from libs.common.contract.machine import AddressStatus, MachineFacts
from libs.common.contract.node import CONTROL_PLANE_LABEL, Node
from libs.common.contract.public_addresses import EXTERNAL_LINK
from services.csr.core.certificate_request import CertificateRequest, quote_untrusted
from services.csr.core.claim_index import collect_attested_ips, parse_provided_ips
from services.csr.core.decision import ApiEndpoint, ApprovalPolicy, Check, make_undecided

_NETWORKS_UNKNOWN = (
    "the cluster's Service networks are not known: {}, and --service-cluster-ip-range is not given"
)
_IN_CERTIFICATE = "is in the certificate of an API server"
_NOT_ATTESTED = ", and no machine attests it (no Talos): approve the request by hand if it is right"
_DOMAIN_UNKNOWN = (
    "DNS name {} may be a Service's: csr does not know the domain of the cluster: the certificate that it "
    "reads is not kube-apiserver's own"
)
_UNREPORTED_WITHOUT_TALOS = "with --without-talos no control plane reports them"
_NOT_REPORTED_YET = "no control plane has reported them yet"


def check_cluster_knowledge(
    requested: CertificateRequest, name: str, policy: ApprovalPolicy, *, without_talos: bool
) -> Iterator[Check]:
    """Check that the cluster data that these names and addresses require is available."""
    if requested.ips and not policy.has_service_cidrs:
        yield make_undecided("networks", SERVICE_CIDRS_UNKNOWN, name)
    elif requested.ips and policy.service_networks is None:
        text = _NETWORKS_UNKNOWN.format(_UNREPORTED_WITHOUT_TALOS if without_talos else _NOT_REPORTED_YET)
        yield make_undecided("networks", text, name)
    if not depends_on_endpoint(requested, name):
        return
    endpoint = policy.api_endpoint
    if not endpoint.identities:
        why = f": {quote_untrusted(endpoint.fault, 300)}" if endpoint.fault else ""
        yield make_undecided(
            "endpoint", f"the certificate of the API server has not been read yet{why}", name
        )
    elif not endpoint.is_api_server and (names := tuple(filter(has_service_form, requested.dns_names))):
        yield make_undecided("endpoint", _DOMAIN_UNKNOWN.format(quote_untrusted(names[0])), name)


def depends_on_endpoint(requested: CertificateRequest, name: str) -> bool:
    """Whether the API server's certificate matters: not for the Node's own name, which every Node may have.

    If that name may be a Service's, the certificate matters: it shows the domain of the cluster.
    """
    return bool(requested.ips) or any(dns != name or has_service_form(dns) for dns in requested.dns_names)


def check_endpoint_name(dns: str, node: Node, api_endpoint: ApiEndpoint) -> Check | None:
    """Check a host name of an API server; None if `node` may have it or if it is not such a name.

    A control plane may have a full name below its node name if its machine attests that name.
    """
    if not api_endpoint.has_name(dns):
        return None
    if not _is_below(dns, node.name):
        return _deny_name(dns)
    if is_control_plane(node):
        return None
    return make_undecided(
        "endpoint",
        f"DNS name {quote_untrusted(dns)} {_IN_CERTIFICATE}, {_describe_missing_label(node)}",
        node.name,
    )


def check_endpoint_address(
    ip: str, node: Node, facts: MachineFacts, answered_ips: frozenset[str], api_endpoint: ApiEndpoint
) -> Check | None:
    """Check an address of an API server; None if `node` may have it or if it is not such an address.

    The Node's own node IPs pass. A control plane may also have other addresses of its machine, but no virtual
    IP. `answered_ips` are the addresses at which the machine answered.
    """
    if not api_endpoint.has_address(ip) or ip in _node_ips(node, facts, answered_ips):
        return None
    text = f"IP address {ip} {_IN_CERTIFICATE}"
    if not is_control_plane(node):
        text = (
            f"{text}, is no node IP at which the machine of {node.name} answered, "
            f"{_describe_missing_label(node)}"
        )
        return make_undecided("endpoint", text, node.name)
    if _is_virtual_ip(ip, facts.addresses):
        text = f"{text} and looks like a virtual IP: a /32 inside the subnet of another address of its link"
        return make_undecided("endpoint", text, node.name)
    return None


def check_endpoint_without_talos(
    name: str, api_endpoint: ApiEndpoint, *, dns: str = "", ip: str = ""
) -> Check | None:
    """Check one DNS name or IP address that no machine can attest, as the checks above do."""
    if dns and api_endpoint.has_name(dns):
        if not _is_below(dns, name):
            return _deny_name(dns)
        return make_undecided(
            "endpoint", f"DNS name {quote_untrusted(dns)} {_IN_CERTIFICATE}{_NOT_ATTESTED}", name
        )
    if ip and api_endpoint.has_address(ip):
        return make_undecided("endpoint", f"IP address {ip} {_IN_CERTIFICATE}{_NOT_ATTESTED}", name)
    return None


def is_control_plane(node: Node) -> bool:
    """Whether the Node has the control plane label, which NodeRestriction prevents kubelets from writing."""
    return CONTROL_PLANE_LABEL in node.labels


def _describe_missing_label(node: Node) -> str:
    return f"and Node {node.name} has no label {CONTROL_PLANE_LABEL}"


def _is_below(dns: str, name: str) -> bool:
    return dns.lower().startswith(f"{name}.")


def _deny_name(dns: str) -> Check:
    return Check(name="endpoint", passed=False, text=f"DNS name {quote_untrusted(dns)} {_IN_CERTIFICATE}")


def _node_ips(node: Node, facts: MachineFacts, answered: frozenset[str]) -> frozenset[str]:
    """Return the node IPs that the machine is known to have.

    A kubelet writes the annotation, and a hostile machine attests anything. So attestation alone suffices
    only for control planes; the machine of any other Node must have answered at the address.
    """
    known = answered | collect_attested_ips(facts) if is_control_plane(node) else answered
    return frozenset({canonical_ip(facts.node_ip)}) | (parse_provided_ips(node.provided_node_ip) & known)


def _is_virtual_ip(ip: str, statuses: tuple[AddressStatus, ...]) -> bool:
    """Whether the address is an IPv4 /32 inside the subnet of another address on its link.

    Talos sets a virtual IP like that. IPv6 is excluded because DHCPv6 also assigns a /128 inside the link's
    /64.
    """
    own = [status for status in statuses if canonical_ip(status.address) == ip]
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
