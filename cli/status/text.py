"""The cluster status as text: the same on a terminal and in a pipe, except for line breaks. Pure."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from rich.text import Text

from cli.cluster.kept_keys import KeptKeyReport, count_kept_keys, format_kept_key
from cli.lines import (
    Cell,
    Line,
    blank_line,
    format_age,
    format_field,
    format_more,
    format_table,
    pluralize,
    shorten,
)
from cli.status.clouds import AccountStatus, BlockedBalancer
from cli.status.cluster_status import ClusterStatus
from cli.status.components import (
    CertificateStatus,
    ComponentState,
    ConsumerStatus,
    LeaderStatus,
    ServiceStatus,
)
from cli.status.ipam.ipam_status import IpamStatus, PoolStatus
from cli.status.ipam.text import format_number
from cli.status.nodes import NodesStatus, OpenRequest, RequestsStatus, UnusableNode
from libs.common.bus.stream_limits import MAX_MESSAGE_AGE_TEXT
from libs.common.cloud_config.findings import truncate_line

_MOST: Final = 10  # maximum lines of one kind
_STYLES: Final[dict[ComponentState, str]] = {
    "well": "green",
    "wrong": "red",
    "unknown": "cyan",
    "absent": "dim",
}
_INSTANCE_STATES: Final = {"exists": "exist", "shut-down": "shut down", "not-asked": "not asked for yet"}
_CERTIFICATES: Final = {
    "nats-server": "NATS",
    "nats-authority": "CA of NATS",
    "talos": "metadata's Talos certificate",
}


def format_status(found: ClusterStatus, *, width: int) -> Iterator[Line]:
    """Yield the lines. `width` is that of the terminal, or 0 for a pipe."""
    yield _format_verdict(found)
    yield from (Line(2, Text(text, style="red")) for text in found.wrong)
    yield from (Line(2, Text(text, style="cyan")) for text in found.unknown)
    yield blank_line()
    if found.services:
        rows = [_format_service(one) for one in found.services]
        yield from format_table(("SERVICE", "PODS", "RESTARTS", ""), rows, width=width)
        yield blank_line()
    yield _format_leader(found.leader)
    yield from _format_messages(found, width)
    yield blank_line()
    yield from _format_nodes(found.nodes, width)
    yield from _format_kept_keys(found.kept_keys)
    yield from _format_requests(found.requests, width)
    yield _format_pod_cidrs(found.pod_cidrs)
    yield from _format_accounts(found.clouds)
    yield from _format_balancers(found.blocked_balancers)
    yield from _format_certificates(found.certificates, found.at)


def _format_verdict(found: ClusterStatus) -> Line:
    if found.wrong:
        return Line(0, Text(pluralize(len(found.wrong), "problem"), style="bold red"))
    if found.is_unknown:
        return Line(0, Text("no problem found, but not everything could be read", style="bold cyan"))
    if found.kept_keys:
        text = f"nothing failed, but {_count_kept_keys(found.kept_keys)}"
        return Line(0, Text(text, style="bold yellow"))
    return Line(0, Text("no problems", style="bold green"))


def _format_service(one: ServiceStatus) -> list[Cell]:
    words = {"well": "running", "wrong": "missing", "unknown": "?", "absent": "-"}
    pods, restarts = words[one.state], "?"
    if one.pods is not None:
        pods, restarts = f"{one.ready}/{one.pods}", str(one.restarts)
    return [
        one.name,
        (pods, _STYLES[one.state]),
        (restarts, "yellow" if one.restarts else "dim"),
        (shorten(one.text), "" if one.state == "wrong" else "dim"),
    ]


def _format_leader(leader: LeaderStatus) -> Line:
    parts = [truncate_line(leader.holder)] if leader.holder else []
    if leader.lease_seconds is not None:
        parts.append(f"Lease renewed {format_age(leader.lease_seconds)} ago")
    if leader.heartbeat_seconds is not None:
        parts.append(f"last heartbeat {format_age(leader.heartbeat_seconds)} ago")
    if leader.text:
        parts.append(shorten(leader.text))
    return format_field("Leader", ", ".join(parts), _STYLES[leader.state] if leader.state != "well" else "")


def _format_messages(found: ClusterStatus, width: int) -> Iterator[Line]:
    stream, letters = found.stream, found.dead_letters
    if found.all_in_one:
        yield format_field("Messages", "none: all services run in one process, without NATS", "dim")
    elif not found.has_flow:
        yield format_field("Messages", "unknown", "cyan")
    elif stream is None:
        yield format_field("Stream", "does not exist", "red")
    else:
        room = f" of {_format_bytes(stream.max_bytes)}" if stream.max_bytes else ""
        yield format_field("Stream", f"{stream.messages:,} messages, {_format_bytes(stream.bytes)}{room}")
        yield blank_line()
        head = ("CONSUMER", "PENDING", "UNACKED", "REDELIVERED", "LAST ACTIVE", "")
        yield from format_table(head, [_format_consumer(one) for one in found.queues], width=width)
        yield blank_line()
        count = f"{letters.count:,}" if letters.count else "none"
        yield format_field("Dead letters", count, "red" if letters.newest else "")
        for letter in letters.newest[:_MOST]:
            age = format_age((found.at - letter.at).total_seconds())
            yield Line(2, Text(shorten(letter.reason)), Text(f"{truncate_line(letter.about)}, {age} ago: "))
        yield from format_more(letters.count, _MOST, indent=2)


def _format_consumer(one: ConsumerStatus) -> list[Cell]:
    return [
        one.name,
        (f"{one.pending:,}", "red" if one.state == "wrong" else "dim" if one.state == "absent" else ""),
        f"{one.unacknowledged:,}",
        (f"{one.redelivered:,}", "yellow" if one.redelivered else ""),
        "-" if one.idle_seconds is None else f"{format_age(one.idle_seconds)} ago",
        (one.text, _STYLES[one.state]),
    ]


def _format_nodes(nodes: NodesStatus, width: int) -> Iterator[Line]:
    text = f"{nodes.count:,}, {nodes.usable:,} usable"
    parts = ((nodes.not_ready, "not ready"), (nodes.excluded, "excluded by `ownership`"))
    if shown := [f"{count:,} of them {what}" for count, what in parts if count]:
        text += f" ({', '.join(shown)})"
    waiting = nodes.uninitialized
    if waiting:
        oldest = waiting[0].seconds
        since = f", the oldest for {format_age(oldest)}" if oldest is not None else ""
        text += f"; {len(waiting):,} uninitialized{since}"
    yield format_field("Nodes", text, "red" if nodes.stuck or nodes.lost else "")
    if waiting:
        rows = [_format_node(one) for one in waiting[:_MOST]]
        yield from format_table(("NODE", "FOR", "WHY"), rows, indent=2, width=width)
        yield from format_more(len(waiting), _MOST, indent=2)


def _format_node(one: UnusableNode) -> list[Cell]:
    style = "dim" if one.is_joining else "red" if one.is_blocked else "yellow"
    return [one.name, format_age(one.seconds), (shorten(one.why), style)]


def _count_kept_keys(kept: tuple[KeptKeyReport, ...]) -> str:
    return f"{count_kept_keys(kept)}, on {pluralize(len({each.node for each in kept}), 'Node')}"


def _format_kept_keys(kept: tuple[KeptKeyReport, ...]) -> Iterator[Line]:
    """Yield the keys, grouped by Node."""
    if not kept:
        return
    yield format_field("Kept keys", _count_kept_keys(kept), "yellow")
    for position, each in enumerate(kept[:_MOST]):
        if position == 0 or each.node != kept[position - 1].node:
            yield Line(2, Text(each.node))
        yield from (line._replace(indent=4 + line.indent) for line in format_kept_key(each))
    yield from format_more(len(kept), _MOST, indent=2)


def _format_requests(requests: RequestsStatus | None, width: int) -> Iterator[Line]:
    if requests is None:
        yield format_field("CSRs", "unknown", "cyan")
        return
    superseded = f" ({requests.superseded:,} superseded)" if requests.superseded else ""
    text = (
        f"{requests.pending:,} pending{superseded}, {requests.denied:,} denied, "
        f"{requests.not_issued:,} approved but not issued, {requests.issued:,} issued"
    )
    yield format_field("CSRs", text, "red" if any(one.is_wrong for one in requests.open) else "")
    if requests.open:
        rows = [_format_request(one) for one in requests.open[:_MOST]]
        yield from format_table(("CSR", "NODE", "STATE", "FOR", "WHY"), rows, indent=2, width=width)
        yield from format_more(len(requests.open), _MOST, indent=2)


def _format_request(one: OpenRequest) -> list[Cell]:
    state = (one.state.replace("-", " "), "red" if one.is_wrong else "")
    return [
        truncate_line(one.name), truncate_line(one.node), state, format_age(one.seconds), shorten(one.why)
    ]  # fmt: skip


def _format_pod_cidrs(found: IpamStatus | None) -> Line:
    if found is None:
        return format_field("Pod CIDRs", "unknown", "cyan")
    if not found.claim_pages:
        return format_field("Pod CIDRs", "not allocated by ipam: it has no claims", "dim")
    parts = [_format_pool(pool) for pool in found.pools if pool.name]
    if not found.are_pools_known:
        parts = [f"{format_number(sum(pool.in_use for pool in found.pools))} blocks in use"]
    if found.nodes.waiting:
        parts.append(f"{found.nodes.waiting:,} Nodes wait for one")
    if found.quarantined:
        parts.append(f"{len(found.quarantined):,} in quarantine")
    parts.append(f"{len(found.conflicts):,} conflicts" if found.conflicts else "no conflicts")
    return format_field("Pod CIDRs", "; ".join(parts), "red" if found.conflicts else "")


def _format_pool(pool: PoolStatus) -> str:
    used = f"{pool.network}: {format_number(pool.in_use)}"
    if pool.free is None or pool.capacity is None:
        return f"{used} in use"
    return f"{used} of {format_number(pool.capacity)} in use, {format_number(pool.free)} free"


def _format_accounts(accounts: tuple[AccountStatus, ...]) -> Iterator[Line]:
    for position, one in enumerate(accounts):
        problems = [*one.list_problems()]
        text = f"{one.name}: {shorten('; '.join((*problems, _describe_instances(one))))}"
        yield format_field("" if position else "Clouds", text, "red" if problems else "")


def _format_balancers(blocked: tuple[BlockedBalancer, ...]) -> Iterator[Line]:
    if not blocked:
        return
    yield format_field("Balancers", f"{len(blocked):,} blocked", "red")
    for one in blocked[:_MOST]:
        yield Line(2, Text(shorten(one.why)), Text(f"{one.namespace}/{one.name}: "))
    yield from format_more(len(blocked), _MOST, indent=2)


def _describe_instances(one: AccountStatus) -> str:
    if not one.provider:
        return f"no report within {MAX_MESSAGE_AGE_TEXT}"
    counts = [
        f"{count:,} {_INSTANCE_STATES.get(state, state)}" for state, count in one.instances.items() if count
    ]
    return f"{one.provider}, {', '.join(counts) or 'no Node of this cloud'}"


def _format_certificates(certificates: tuple[CertificateStatus, ...], at: datetime) -> Iterator[Line]:
    for position, one in enumerate(certificates):
        seconds = (one.expires_at - at).total_seconds()
        left = f"expires in {format_age(seconds)}" if seconds > 0 else f"expired {format_age(-seconds)} ago"
        text = f"{_CERTIFICATES.get(one.name, one.name)} {left} ({one.expires_at:%Y-%m-%d %H:%M} UTC)"
        yield format_field("" if position else "Certificates", text, "" if one.state == "well" else "red")


def _format_bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}".replace(".0 ", " ")
    return f"{count} B"
