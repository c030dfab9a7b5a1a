"""The cluster status: the state of every part, the problems, and the unavailable parts. Pure."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

from cli.cluster.kept_keys import KeptKeyReport
from cli.cluster.kube_events import find_config_rejection
from cli.cluster.unavailable import Unavailable
from cli.inside.flow_snapshot import FlowUnavailable, LastMessage, StreamSnapshot
from cli.status.components import (
    CertificateStatus,
    ConsumerStatus,
    LeaderStatus,
    ServiceStatus,
    get_leader_status,
    list_certificate_statuses,
    list_consumer_statuses,
    list_service_statuses,
)
from cli.status.ipam.capacity import resolve_pools
from cli.status.ipam.ipam_status import IpamStatus, build_ipam_status, parse_pages
from cli.status.nodes import NodesStatus, summarize_nodes
from cli.status.requests import RequestsStatus, summarize_requests
from cli.status.status_evidence import StatusEvidence
from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.cloud_config.model import Ownership
from libs.common.contract.controllers import CLOUD_NODE
from libs.common.contract.events import ClusterNetworksObserved, DeadLetter
from services.ipam.effective_networks import NetworkFlags

_QUARANTINE: Final = timedelta(minutes=10)  # default of ipam; only the number of quarantined blocks is shown


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of all parts at one moment."""

    at: datetime
    is_all_in_one: bool
    nats_problem: str  # why NATS was not queried, or did not answer
    services: tuple[ServiceStatus, ...]
    leader: LeaderStatus
    stream: StreamSnapshot | None
    queues: tuple[ConsumerStatus, ...]
    dead_letters: tuple[LastMessage, ...]
    dead_count: int
    nodes: NodesStatus
    kept_keys: tuple[KeptKeyReport, ...]  # no problem: an operator may have set them on purpose
    requests: RequestsStatus | Unavailable
    pod_cidrs: IpamStatus | Unavailable
    certificates: tuple[CertificateStatus, ...]
    unavailable_parts: tuple[str, ...]  # parts that Kubernetes did not return
    problems: tuple[str, ...]

    @property
    def is_unknown(self) -> bool:
        """Whether information is missing that is needed to report that all is well."""
        silent = bool(self.nats_problem) and not self.is_all_in_one
        return silent or isinstance(self.requests, Unavailable) or self.leader.state == "unknown"

    @property
    def exit_status(self) -> int:
        return 1 if self.problems else 2 if self.is_unknown else 0


def build_status(evidence: StatusEvidence) -> ClusterStatus:
    """Return the status of the cluster. It depends on the evidence only."""
    flow = evidence.flow_snapshot
    services = list_service_statuses(evidence)
    installed = {one.name for one in services if one.state != "absent"}
    requests = evidence.requests
    found = ClusterStatus(
        at=evidence.at,
        is_all_in_one=evidence.is_all_in_one,
        nats_problem=evidence.flow.reason if isinstance(evidence.flow, FlowUnavailable) else "",
        services=services,
        leader=get_leader_status(evidence),
        stream=flow.stream if flow else None,
        queues=tuple(list_consumer_statuses(flow, installed)) if flow else (),
        dead_letters=flow.dead if flow else (),
        dead_count=flow.dead_count if flow else 0,
        nodes=summarize_nodes(evidence.nodes, flow, evidence.at, _read_ownership(evidence)),
        kept_keys=evidence.kept_keys,
        requests=requests
        if isinstance(requests, Unavailable)
        else summarize_requests(requests, flow, evidence.at, frozenset(node.name for node in evidence.nodes)),
        pod_cidrs=_build_ipam_status(evidence),
        certificates=tuple(
            list_certificate_statuses(
                (*(flow.certificates if flow else ()), *evidence.certificates), evidence.at
            )
        ),
        unavailable_parts=tuple(_list_unavailable_parts(evidence)),
        problems=(),
    )
    # A rejected configuration comes first: it also makes pods unready.
    problems = (*_list_config_problems(evidence), *_list_problems(found, told=flow is not None))
    return msgspec.structs.replace(found, problems=problems)


def _read_ownership(evidence: StatusEvidence) -> Ownership:
    """Return which Nodes the labeler manages; all of them if the file is unavailable or invalid."""
    text = "" if isinstance(evidence.config_file, Unavailable) else evidence.config_file
    try:
        return parse_cloud_config(text, "the file").ownership.for_controller(CLOUD_NODE)
    except CloudConfigError:  # the services keep an earlier file, and an Event reports this one
        return Ownership()


def _build_ipam_status(evidence: StatusEvidence) -> IpamStatus | Unavailable:
    """Return the IPAM status; its pools are those of the cluster networks that metadata published."""
    claims = evidence.claims
    if isinstance(claims, Unavailable):
        return claims
    pages = parse_pages(claims.pages)
    heard = evidence.flow_snapshot.networks if evidence.flow_snapshot else None
    networks = heard.event if heard else None
    said = NetworkFlags()
    if isinstance(networks, ClusterNetworksObserved):
        said = NetworkFlags(
            cluster_cidrs=networks.pod_cidrs,
            mask_size_ipv4=networks.node_cidr_mask_size_ipv4 or 0,
            mask_size_ipv6=networks.node_cidr_mask_size_ipv6 or 0,
        )
    try:
        pools = resolve_pools(said, (), pages.pages)
    except ValueError:
        # these networks come from a machine config, not from flags; `status ipam` takes ipam's flags
        pools = ()
    return build_ipam_status(
        pages, parse_pages(claims.before), evidence.nodes, pools, at=evidence.at, quarantine=_QUARANTINE
    )  # fmt: skip


def _list_unavailable_parts(evidence: StatusEvidence) -> Iterator[str]:
    parts = {
        "CSRs": evidence.requests,
        "Lease": evidence.lease,
        "pods": evidence.pods,
        "pod CIDR claims": evidence.claims,
        "Events": evidence.events,
        "--cloud-config": evidence.config_file,
    }
    for name, part in parts.items():
        if isinstance(part, Unavailable):
            yield f"{name}: {part.reason}"


def _list_problems(found: ClusterStatus, *, told: bool) -> Iterator[str]:
    """Yield one line per problem, in the order in which an operator checks them."""
    yield from _list_service_problems(found, told=told)
    if found.dead_count:
        yield f"dead letters: {found.dead_count:,}"
    if stuck := found.nodes.stuck:
        yield f"Nodes: {len(stuck):,} uninitialized, the oldest {stuck[0].name}"
    if not isinstance(found.requests, Unavailable):
        owed = [one for one in found.requests.open if one.is_wrong]
        if owed:
            yield f"CSRs: {len(owed):,} nodes without the requested certificate"
    if not isinstance(found.pod_cidrs, Unavailable) and found.pod_cidrs.pages and found.pod_cidrs.conflicts:
        yield f"pod CIDRs: {len(found.pod_cidrs.conflicts):,} conflicts, see talos-ccm status ipam"
    for one in found.certificates:
        if one.state == "wrong":
            yield f"certificate {one.certificate.name}: renewal is overdue"


def _list_config_problems(evidence: StatusEvidence) -> Iterator[str]:
    events = () if isinstance(evidence.events, Unavailable) else evidence.events
    if rejection := find_config_rejection(events):
        yield f"configuration: {rejection.message}"


def _list_service_problems(found: ClusterStatus, *, told: bool) -> Iterator[str]:
    for service in found.services:
        if service.state == "wrong":
            ready = f"{service.ready} of {service.pods} pods ready, " if service.pods else ""
            yield f"{service.name}: {ready}{service.text}"
    if found.leader.state == "wrong":
        yield f"leader: {found.leader.text}"
    if told and found.stream is None:
        yield "stream: it does not exist; the leading watcher creates it"
    for queue in found.queues:
        if queue.state == "wrong":
            yield f"consumer {queue.queue.name}: {queue.text}"


def summarize_dead_letter(word: LastMessage) -> tuple[str, str]:
    """Return the subject of a dead letter and the reason why it was rejected."""
    if isinstance(word.event, DeadLetter):
        letter = word.event
        return f"{letter.service} {letter.kind}/{letter.name}", letter.reason
    return word.subject, f"unreadable: {word.unreadable}"
