"""The evidence about a request, its node, and the Nodes with the same claims. Pure."""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from cli.cluster.kube_objects import CertificateSigningRequest, Container
from cli.cluster.machine_events import MachineReport
from libs.common.cloud_config.model import Ownership
from libs.common.contract.events import CsrEnriched, NodeEnriched, NodeUnreachable
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node
from services.csr.core.certificate_request import CertificateRequest, parse_request
from services.csr.core.claim_index import ClaimIndex
from services.csr.core.decision import ApiEndpoint, ApprovalPolicy
from services.metadata.core.contested_addresses import AddressClaimIndex, find_contested_addresses


class _KnownNode(msgspec.Struct, frozen=True):
    node: Node
    facts: MachineFacts | None
    last_known: MachineFacts | None = None


class RequestEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was gathered about one request; `reports` is keyed by node name."""

    csr: CertificateSigningRequest
    requests: tuple[CertificateSigningRequest, ...] = ()  # requests of the same node, including this one
    nodes: tuple[Node, ...] = ()
    reports: Mapping[str, MachineReport] = {}  # that metadata would publish now
    answered_at: tuple[str, ...] = ()  # contested addresses at which the node's own machine answered
    without_talos: bool = False  # the cluster runs --without-talos: no machine is queried
    talos_problem: str = ""  # why no machine could be queried
    endpoint: ApiEndpoint = ApiEndpoint()  # the certificate of the API server that the caller reaches
    service_networks: tuple[str, ...] | None = None  # as a control plane reports them; None: unknown
    service_cidrs: tuple[str, ...] | None = ()  # of ServiceCIDR objects; None: they cannot be listed
    ownership: Ownership = Ownership()  # csr's section of the --cloud-config file
    container: Container | None = None  # that runs csr; None: none is known
    unavailable_parts: tuple[str, ...] = ()  # the settings of csr that could not be read, with the reason
    at: datetime

    @property
    def node(self) -> Node | None:
        """Return the Node of the requesting kubelet; None if there is none."""
        return next((node for node in self.nodes if node.name == self.csr.node_name), None)

    @property
    def certificate_request(self) -> CertificateRequest | None:
        """Return the requested certificate; None if the request cannot be parsed."""
        parsed = parse_request(self.csr.signing_request.spec.request)
        return parsed if isinstance(parsed, CertificateRequest) else None

    @property
    def queried_machines(self) -> tuple[str, ...]:
        """Return the names of the Nodes whose machines were queried."""
        return tuple(sorted(self.reports))

    @property
    def unqueried_machines(self) -> int:
        """Count the others: they could have the same names or addresses without a claim of their Nodes."""
        return len(self.nodes) - len(self.reports) if self.reports else 0

    def complete_policy(self, policy: ApprovalPolicy) -> ApprovalPolicy:
        """Return the policy with the gathered networks and API endpoint where it has none."""
        networks, endpoint = policy.service_networks, policy.api_endpoint
        networks = self.service_networks if networks is None else networks
        return msgspec.structs.replace(
            policy,
            service_networks=None if networks is None else (*networks, *(self.service_cidrs or ())),
            has_service_cidrs=self.service_cidrs is not None,
            api_endpoint=endpoint if endpoint.identities else self.endpoint,
        )

    @property
    def claims(self) -> ClaimIndex:
        """Return the claim index as csr would build it from these results."""
        claims = ClaimIndex()
        for node in self.nodes:
            claims.upsert_node(node)
            if node.name in self.reports:
                claims.upsert_report(self.reports[node.name])
        return claims

    @property
    def enriched(self) -> CsrEnriched:
        """Return the event that metadata would publish about the request."""
        node = self.node
        report = self.reports.get(node.name) if node else None
        facts = _get_facts(report)
        own = (facts.node_ip,) if facts and node and facts.node_name == node.name else ()
        return CsrEnriched(
            stream_id="",
            observed_sequence=0,
            request=self.csr.signing_request,
            node_uid=node.uid if node else "",
            facts=facts,
            answering_addresses=(*own, *self.answered_at) if own else (),
            fault=report.fault if isinstance(report, NodeUnreachable) else None,
            without_talos=self.without_talos,
            observed_at=self.at,
            enriched_at=self.at,
        )


def find_claimants(evidence: RequestEvidence) -> frozenset[str]:
    """Return the other Nodes that claim a requested name or address."""
    asked, claims = evidence.certificate_request, evidence.claims
    if asked is None:
        return frozenset()
    found = [claim.node for ip in asked.ips for claim in claims.find_by_address(ip)]
    found += [claim.node for dns in asked.dns_names for claim in claims.find_by_name(dns)]
    return frozenset(found) - {evidence.csr.node_name}


def list_contested_addresses(evidence: RequestEvidence) -> tuple[str, ...]:
    """Return the requested addresses at which metadata would dial the node's machine before csr decides."""
    request, facts = evidence.csr.signing_request, evidence.enriched.facts
    if facts is None or facts.node_name != request.node_name:
        return ()
    reports = evidence.reports
    known = {node.name: _KnownNode(node, _get_facts(reports.get(node.name))) for node in evidence.nodes}
    claims = AddressClaimIndex(known)
    for name in known:
        claims.update(name)
    return find_contested_addresses(request, facts, claims)


def _get_facts(report: MachineReport | None) -> MachineFacts | None:
    return report.facts if isinstance(report, NodeEnriched) else None
