"""The cluster status: the state of every part, the problems, and the unavailable parts. Pure."""

from collections.abc import Iterator
from datetime import datetime

import msgspec

from cli.cluster.kept_keys import KeptKeyReport, report_kept_keys
from cli.cluster.kube_events import find_config_rejection
from cli.cluster.snapshot import ClusterSnapshot
from cli.cluster.unavailable import Unavailable, list_known
from cli.inside.flow_snapshot import FlowSnapshot, LastMessage, StreamSnapshot
from cli.lines import format_names
from cli.status.clouds import AccountStatus, BlockedBalancer, list_blocked_balancers, summarize_accounts
from cli.status.components import (
    CertificateStatus,
    ConsumerStatus,
    LeaderStatus,
    ServiceStatus,
    get_leader_status,
    list_consumer_statuses,
    list_service_statuses,
)
from cli.status.ipam.ipam_status import IpamStatus, assess_pod_cidrs, build_ipam_status
from cli.status.nodes import NodesStatus, RequestsStatus, summarize_nodes, summarize_requests
from libs.common.contract.controllers import CLOUD_NODE
from libs.common.contract.events import DeadLetter


class DeadLetterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter: the object that it is about, and why it was rejected."""

    about: str
    reason: str
    at: datetime


class DeadLettersStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The number of all dead letters, and the newest ones."""

    count: int = 0
    newest: tuple[DeadLetterStatus, ...] = ()


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of all parts at one moment, as in the JSON output; an unknown part is None."""

    at: datetime
    wrong: tuple[str, ...] = ()  # the problems
    unknown: tuple[str, ...]  # the parts that could not be read, with the reason
    all_in_one: bool
    has_flow: bool  # whether NATS has answered
    services: tuple[ServiceStatus, ...]
    leader: LeaderStatus
    stream: StreamSnapshot | None
    queues: tuple[ConsumerStatus, ...]
    dead_letters: DeadLettersStatus
    nodes: NodesStatus
    kept_keys: tuple[KeptKeyReport, ...]  # no problem: an operator may have set them on purpose
    requests: RequestsStatus | None
    pod_cidrs: IpamStatus | None = msgspec.field(name="podCIDRs")
    clouds: tuple[AccountStatus, ...]
    blocked_balancers: tuple[BlockedBalancer, ...]
    certificates: tuple[CertificateStatus, ...]

    @property
    def is_unknown(self) -> bool:
        """Whether information is missing that is needed to report that all is well."""
        is_silent = not self.has_flow and not self.all_in_one
        return is_silent or self.requests is None or self.leader.state == "unknown"

    @property
    def exit_status(self) -> int:
        return 1 if self.wrong else 2 if self.is_unknown else 0


def build_status(snapshot: ClusterSnapshot) -> ClusterStatus:
    """Return the status of the cluster."""
    flow, nodes = snapshot.flow_snapshot, list_known(snapshot.nodes)
    known = flow or FlowSnapshot(at=snapshot.at)
    services = list_service_statuses(snapshot)
    installed = {one.name for one in services if one.state != "absent"}
    found = ClusterStatus(
        at=snapshot.at,
        unknown=tuple(filter(None, (snapshot.flow_problem, *snapshot.unavailable_parts))),
        all_in_one=snapshot.is_all_in_one,
        has_flow=flow is not None,
        services=services,
        leader=get_leader_status(snapshot),
        stream=known.stream,
        queues=tuple(list_consumer_statuses(known, installed)),
        dead_letters=DeadLettersStatus(
            count=known.dead_count, newest=tuple(map(_summarize_dead_letter, known.dead))
        ),
        nodes=summarize_nodes(nodes, flow, snapshot.at, snapshot.get_ownership(CLOUD_NODE)),
        kept_keys=tuple(report for node in nodes for report in report_kept_keys(node)),
        requests=None
        if isinstance(snapshot.requests, Unavailable)
        else summarize_requests(snapshot.requests, flow, snapshot.at, frozenset(node.name for node in nodes)),
        pod_cidrs=_build_ipam_status(snapshot),
        clouds=summarize_accounts(nodes, flow),
        blocked_balancers=tuple(list_blocked_balancers(known)),
        certificates=tuple(
            CertificateStatus(
                name=one.name,
                expires_at=one.expires_at,
                state="wrong" if one.is_overdue(snapshot.at) else "well",
            )
            for one in (*known.certificates, *snapshot.certificates)
        ),
    )
    # A rejected configuration comes first: it also makes pods unready.
    rejection = find_config_rejection(list_known(snapshot.events))
    rejected = (f"configuration: {rejection.message}",) if rejection else ()
    return msgspec.structs.replace(found, wrong=(*rejected, *_list_problems(found)))


def _build_ipam_status(snapshot: ClusterSnapshot) -> IpamStatus | None:
    if isinstance(snapshot.claims, Unavailable):
        return None
    try:
        return assess_pod_cidrs(snapshot, snapshot.claims, {})
    except ValueError:  # such networks come from a machine config, and ipam reports them
        return build_ipam_status(snapshot.claims, list_known(snapshot.nodes), (), at=snapshot.at)


def _list_problems(found: ClusterStatus) -> Iterator[str]:
    """Yield one line per problem, in the order in which an operator checks them."""
    yield from _list_service_problems(found)
    if found.dead_letters.count:
        yield f"dead letters: {found.dead_letters.count:,}"
    if stuck := found.nodes.stuck:
        yield f"Nodes: {len(stuck):,} uninitialized, the oldest {stuck[0].name}"
    if lost := found.nodes.lost:
        names = format_names((f"{one.name} ({one.why})" for one in lost), most=3)
        explain = f"run talos-ccm explain node {lost[0].name}"
        yield f"Nodes: {len(lost):,} initialized but not ready, {names}; {explain}"
    if found.requests and (owed := [one for one in found.requests.open if one.is_wrong]):
        yield f"CSRs: {len(owed):,} nodes without the requested certificate"
    if found.pod_cidrs and found.pod_cidrs.claim_pages and found.pod_cidrs.conflicts:
        yield f"pod CIDRs: {len(found.pod_cidrs.conflicts):,} conflicts, see talos-ccm status ipam"
    for account in found.clouds:
        yield from (f"cloud account {account.name}: {problem}" for problem in account.list_problems())
    if blocked := found.blocked_balancers:
        first, names = blocked[0], format_names((f"{one.namespace}/{one.name}" for one in blocked), most=3)
        explain = f"run talos-ccm explain service {first.namespace}/{first.name}"
        yield f"load balancers: {len(blocked):,} blocked, {names}; {explain}"
    for one in found.certificates:
        if one.state == "wrong":
            yield f"certificate {one.name}: renewal is overdue"


def _list_service_problems(found: ClusterStatus) -> Iterator[str]:
    for service in found.services:
        if service.state == "wrong":
            ready = f"{service.ready} of {service.pods} pods ready, " if service.pods else ""
            yield f"{service.name}: {ready}{service.text}"
    if found.leader.state == "wrong":
        yield f"leader: {found.leader.text}"
    if found.has_flow and found.stream is None:
        yield "stream: it does not exist; the leading watcher creates it"
    for queue in found.queues:
        if queue.state == "wrong":
            yield f"consumer {queue.name}: {queue.text}"


def _summarize_dead_letter(message: LastMessage) -> DeadLetterStatus:
    about, reason, letter = message.subject, f"unreadable: {message.unreadable}", message.event
    if isinstance(letter, DeadLetter):
        about, reason = f"{letter.service} {letter.kind}/{letter.name}", letter.reason
    return DeadLetterStatus(about=about, reason=reason, at=message.published_at)
