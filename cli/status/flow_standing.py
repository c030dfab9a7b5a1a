"""How the flow stands: every part judged, what is wrong of it, and what cannot be told. Pure."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

from cli.inside.seen import StreamSeen, Unknown, Word
from cli.status.flow_nodes import NodesStanding, nodes_standing
from cli.status.flow_parts import (
    CertificateStanding,
    LeaderStanding,
    QueueStanding,
    ServiceStanding,
    certificates_standing,
    leader_standing,
    queues_standing,
    services_standing,
)
from cli.status.flow_requests import RequestsStanding, requests_standing
from cli.status.flow_seen import Evidence, Untold
from cli.status.offered import offered
from cli.status.standing import Standing, read, standing
from libs.common.events import ClusterNetworksObserved, DeadLetter
from services.ipam.effective_networks import NetworkFlags

_QUARANTINE: Final = timedelta(minutes=10)  # ipam's by default; of what rests only the count is told


class FlowStanding(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, at one moment."""

    at: datetime
    all_in_one: bool
    nats_problem: str  # why NATS was not asked, or did not tell
    services: tuple[ServiceStanding, ...]
    leader: LeaderStanding
    stream: StreamSeen | None
    queues: tuple[QueueStanding, ...]
    dead: tuple[Word, ...]
    dead_count: int
    nodes: NodesStanding
    requests: RequestsStanding | Untold
    pod_cidrs: Standing | Untold
    certificates: tuple[CertificateStanding, ...]
    untold: tuple[str, ...]  # parts that Kubernetes did not tell
    wrong: tuple[str, ...]

    @property
    def unknown(self) -> bool:
        """Whether something is missing without which nobody can say that all is well."""
        silent = bool(self.nats_problem) and not self.all_in_one
        return silent or isinstance(self.requests, Untold) or self.leader.state == "unknown"

    @property
    def exit_status(self) -> int:
        return 1 if self.wrong else 2 if self.unknown else 0


def flow_standing(evidence: Evidence) -> FlowStanding:
    """Judged by what was gathered alone."""
    flow = evidence.flow_seen
    services = services_standing(evidence)
    installed = {one.name for one in services if one.state != "absent"}
    requests = evidence.requests
    found = FlowStanding(
        at=evidence.at,
        all_in_one=evidence.all_in_one,
        nats_problem=evidence.flow.reason if isinstance(evidence.flow, Unknown) else "",
        services=services,
        leader=leader_standing(evidence),
        stream=flow.stream if flow else None,
        queues=tuple(queues_standing(flow, installed)) if flow else (),
        dead=flow.dead if flow else (),
        dead_count=flow.dead_count if flow else 0,
        nodes=nodes_standing(evidence.nodes, flow, evidence.at),
        requests=requests
        if isinstance(requests, Untold)
        else requests_standing(requests, flow, evidence.at, frozenset(node.name for node in evidence.nodes)),
        pod_cidrs=_pod_cidrs(evidence),
        certificates=tuple(
            certificates_standing((*(flow.certificates if flow else ()), *evidence.certificates), evidence.at)
        ),
        untold=tuple(_untold(evidence)),
        wrong=(),
    )
    return msgspec.structs.replace(found, wrong=tuple(_wrong(found, told=flow is not None)))


def _pod_cidrs(evidence: Evidence) -> Standing | Untold:
    """Pools are known where metadata has heard the cluster's networks; the rest is told by `status ipam`."""
    claims = evidence.claims
    if isinstance(claims, Untold):
        return claims
    pages = read(claims.pages)
    heard = evidence.flow_seen.networks if evidence.flow_seen else None
    networks = heard.event if heard else None
    said = NetworkFlags()
    if isinstance(networks, ClusterNetworksObserved):
        said = NetworkFlags(
            cluster_cidrs=networks.pod_cidrs,
            mask_size_ipv4=networks.node_cidr_mask_size_ipv4 or 0,
            mask_size_ipv6=networks.node_cidr_mask_size_ipv6 or 0,
        )
    try:
        pools = offered(said, (), pages.pages)
    except ValueError:
        pools = ()  # what a machine config says is no flag of ours: `status ipam` is told what ipam was told
    return standing(
        pages, read(claims.before), evidence.nodes, pools, at=evidence.at, rest=_QUARANTINE
    )  # fmt: skip


def _untold(evidence: Evidence) -> Iterator[str]:
    parts = {
        "CSRs": evidence.requests,
        "Lease": evidence.lease,
        "pods": evidence.pods,
        "claims of pod CIDRs": evidence.claims,
    }
    for name, part in parts.items():
        if isinstance(part, Untold):
            yield f"{name}: {part.reason}"


def _wrong(found: FlowStanding, *, told: bool) -> Iterator[str]:
    """In a line each, what an operator looks at first."""
    yield from _wrong_of_services(found, told=told)
    if found.dead_count:
        yield f"dead letters: {found.dead_count:,}"
    if stuck := found.nodes.stuck:
        yield f"Nodes: {len(stuck):,} uninitialized, the oldest {stuck[0].name}"
    if not isinstance(found.requests, Untold):
        owed = [one for one in found.requests.open if one.wrong]
        if owed:
            yield f"CSRs: {len(owed):,} nodes without the certificate that they asked for"
    if not isinstance(found.pod_cidrs, Untold) and found.pod_cidrs.pages and found.pod_cidrs.conflicts:
        yield f"pod CIDRs: {len(found.pod_cidrs.conflicts):,} conflicts, see talos-ccm status ipam"
    for one in found.certificates:
        if one.state == "wrong":
            yield f"certificate {one.certificate.name}: it should have been renewed by now"


def _wrong_of_services(found: FlowStanding, *, told: bool) -> Iterator[str]:
    for service in found.services:
        if service.state == "wrong":
            ready = f"{service.ready} of {service.pods} pods ready, " if service.pods else ""
            yield f"{service.name}: {ready}{service.text}"
    if found.leader.state == "wrong":
        yield f"leader: {found.leader.text}"
    if told and found.stream is None:
        yield "stream: it does not exist, the watcher that leads makes it"
    for queue in found.queues:
        if queue.state == "wrong":
            yield f"queue {queue.queue.name}: {queue.text}"


def dead_letter(word: Word) -> tuple[str, str]:
    """About what a letter is, and why it was put aside."""
    if isinstance(word.event, DeadLetter):
        letter = word.event
        return f"{letter.service} {letter.kind}/{letter.name}", letter.reason
    return word.subject, f"cannot be read: {word.unreadable}"
