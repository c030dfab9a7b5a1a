"""The cluster status as text: the same on a terminal and in a pipe, except for line breaks. Pure."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from rich.text import Text

from cli.cluster.kept_keys import KeptKeyReport, count_kept_keys, format_kept_key
from cli.lines import Line
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
from cli.status.nodes import NodesStatus, UnusableNode
from cli.status.requests import OpenRequest, RequestsStatus
from cli.table import format_table
from libs.common.cloud_config.findings import truncate_line

_MOST: Final = 10  # maximum lines of one kind
_WHY: Final = 200  # maximum characters of a text from outside
_STYLES: Final[dict[ComponentState, str]] = {
    "well": "green",
    "wrong": "red",
    "unknown": "cyan",
    "absent": "dim",
}
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
    yield _blank_line()
    if found.services:
        yield from _format_services(found.services, width)
        yield _blank_line()
    yield _format_field("Leader", *_format_leader(found.leader))
    yield from _format_messages(found, width)
    yield _blank_line()
    yield from _format_nodes(found.nodes, width)
    yield from _format_kept_keys(found.kept_keys)
    yield from _format_requests(found.requests, width)
    yield from _format_pod_cidrs(found.pod_cidrs)
    yield from _format_certificates(found.certificates, found.at)


def format_age(seconds: float) -> str:
    """Return a duration with the largest suitable unit, rounded."""
    seconds = max(0, round(seconds))
    for unit, size, until in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < until:
            return f"{seconds // size} {unit}"
    return f"{seconds // 86_400} d"


def _format_verdict(found: ClusterStatus) -> Line:
    if found.wrong:
        many = "1 problem" if len(found.wrong) == 1 else f"{len(found.wrong)} problems"
        return Line(0, Text(many, style="bold red"))
    if found.is_unknown:
        return Line(0, Text("no problem found, but not everything could be read", style="bold cyan"))
    if found.kept_keys:
        text = f"nothing failed, but {_count_kept_keys(found.kept_keys)}"
        return Line(0, Text(text, style="bold yellow"))
    return Line(0, Text("no problems", style="bold green"))


def _format_services(services: tuple[ServiceStatus, ...], width: int) -> Iterator[Line]:
    rows = [_format_service(one) for one in services]
    yield from format_table(("SERVICE", "PODS", "RESTARTS", ""), rows, width=width, is_last_column_prose=True)


def _format_service(one: ServiceStatus) -> list[Text]:
    known = one.pods is not None
    words = {"well": "running", "wrong": "missing", "unknown": "?", "absent": "-"}
    return [
        Text(one.name),
        Text(f"{one.ready}/{one.pods}" if known else words[one.state], style=_STYLES[one.state]),
        Text(str(one.restarts) if known else "?", style="yellow" if one.restarts else "dim"),
        Text(_truncate(one.text), style="" if one.state == "wrong" else "dim"),
    ]


def _format_leader(leader: LeaderStatus) -> tuple[str, str]:
    told = [truncate_line(leader.holder)] if leader.holder else []
    if leader.lease_seconds is not None:
        told.append(f"Lease renewed {format_age(leader.lease_seconds)} ago")
    if leader.heartbeat_seconds is not None:
        told.append(f"last heartbeat {format_age(leader.heartbeat_seconds)} ago")
    if leader.text:
        told.append(_truncate(leader.text))
    return ", ".join(told), _STYLES[leader.state] if leader.state != "well" else ""


def _format_messages(found: ClusterStatus, width: int) -> Iterator[Line]:
    if found.all_in_one:
        yield _format_field("Messages", "none: all services run in one process, without NATS", "dim")
        return
    if not found.has_flow:
        yield _format_field("Messages", "unknown", "cyan")
        return
    stream, letters = found.stream, found.dead_letters
    if stream is None:
        yield _format_field("Stream", "does not exist", "red")
        return
    room = f" of {_format_bytes(stream.max_bytes)}" if stream.max_bytes else ""
    yield _format_field("Stream", f"{stream.messages:,} messages, {_format_bytes(stream.bytes)}{room}")
    yield _blank_line()
    rows = [_format_consumer(one) for one in found.queues]
    head = ("CONSUMER", "PENDING", "UNACKED", "REDELIVERED", "LAST ACTIVE", "")
    yield from format_table(head, rows, width=width, is_last_column_prose=True)
    yield _blank_line()
    yield _format_field(
        "Dead letters",
        f"{letters.count:,}" if letters.count else "none",
        "red" if letters.newest else "",
    )
    for letter in letters.newest[:_MOST]:
        age = format_age((found.at - letter.at).total_seconds())
        yield Line(2, Text(_truncate(letter.reason)), Text(f"{truncate_line(letter.about)}, {age} ago: "))
    yield from _format_more(letters.count)


def _format_consumer(one: ConsumerStatus) -> list[Text]:
    idle = "-" if one.idle_seconds is None else f"{format_age(one.idle_seconds)} ago"
    late = "red" if one.state == "wrong" else "dim" if one.state == "absent" else ""
    return [
        Text(one.name),
        Text(f"{one.pending:,}", style=late),
        Text(f"{one.unacknowledged:,}"),
        Text(f"{one.redelivered:,}", style="yellow" if one.redelivered else ""),
        Text(idle),
        Text(one.text, style=_STYLES[one.state]),
    ]


def _format_nodes(nodes: NodesStatus, width: int) -> Iterator[Line]:
    told = f"{nodes.count:,}, {nodes.usable:,} usable"
    parts = ((nodes.not_ready, "not ready"), (nodes.excluded, "excluded by `ownership`"))
    if shown := [f"{count:,} of them {what}" for count, what in parts if count]:
        told += f" ({', '.join(shown)})"
    if nodes.uninitialized:
        oldest = nodes.uninitialized[0].seconds
        since = f", the oldest for {format_age(oldest)}" if oldest is not None else ""
        told += f"; {len(nodes.uninitialized):,} uninitialized{since}"
    yield _format_field("Nodes", told, "red" if nodes.stuck else "")
    if nodes.uninitialized:
        rows = [_format_node(one) for one in nodes.uninitialized[:_MOST]]
        yield from format_table(
            ("NODE", "FOR", "WHY"), rows, indent=2, width=width, is_last_column_prose=True
        )
        yield from _format_more(len(nodes.uninitialized))


def _format_node(one: UnusableNode) -> list[Text]:
    age = "?" if one.seconds is None else format_age(one.seconds)
    return [
        Text(one.name),
        Text(age),
        Text(_truncate(one.why), style="dim" if one.is_joining else "red" if one.is_blocked else "yellow"),
    ]


def _count_kept_keys(kept: tuple[KeptKeyReport, ...]) -> str:
    nodes = len({each.node for each in kept})
    return f"{count_kept_keys(kept)}, on {'1 Node' if nodes == 1 else f'{nodes:,} Nodes'}"


def _format_kept_keys(kept: tuple[KeptKeyReport, ...]) -> Iterator[Line]:
    """Yield the keys, grouped by Node."""
    if not kept:
        return
    yield _format_field("Kept keys", _count_kept_keys(kept), "yellow")
    for position, each in enumerate(kept[:_MOST]):
        if position == 0 or each.node != kept[position - 1].node:
            yield Line(2, Text(each.node))
        yield from (line._replace(indent=4 + line.indent) for line in format_kept_key(each))
    yield from _format_more(len(kept))


def _format_requests(requests: RequestsStatus | None, width: int) -> Iterator[Line]:
    if requests is None:
        yield _format_field("CSRs", "unknown", "cyan")
        return
    superseded = f" ({requests.superseded:,} superseded)" if requests.superseded else ""
    told = (
        f"{requests.pending:,} pending{superseded}, {requests.denied:,} denied, "
        f"{requests.not_issued:,} approved but not issued, {requests.issued:,} issued"
    )
    yield _format_field("CSRs", told, "red" if any(one.is_wrong for one in requests.open) else "")
    if requests.open:
        rows = [_format_request(one) for one in requests.open[:_MOST]]
        yield from format_table(
            ("CSR", "NODE", "STATE", "FOR", "WHY"), rows, indent=2, width=width, is_last_column_prose=True
        )
        yield from _format_more(len(requests.open))


def _format_request(one: OpenRequest) -> list[Text]:
    state = {"not-issued": "not issued"}.get(one.state, one.state)
    return [
        Text(truncate_line(one.name)),
        Text(truncate_line(one.node)),
        Text(state, style="red" if one.is_wrong else ""),
        Text("?" if one.seconds is None else format_age(one.seconds)),
        Text(_truncate(one.why)),
    ]


def _format_pod_cidrs(found: IpamStatus | None) -> Iterator[Line]:
    if found is None:
        yield _format_field("Pod CIDRs", "unknown", "cyan")
        return
    if not found.claim_pages:
        yield _format_field("Pod CIDRs", "not allocated by ipam: it has no claims", "dim")
        return
    told = [_format_pool(pool) for pool in found.pools if pool.name]
    if not found.are_pools_known:
        told = [f"{format_number(sum(pool.in_use for pool in found.pools))} blocks in use"]
    if found.nodes.waiting:
        told.append(f"{found.nodes.waiting:,} Nodes wait for one")
    if found.quarantined:
        told.append(f"{len(found.quarantined):,} in quarantine")
    told.append(f"{len(found.conflicts):,} conflicts" if found.conflicts else "no conflicts")
    yield _format_field("Pod CIDRs", "; ".join(told), "red" if found.conflicts else "")


def _format_pool(pool: PoolStatus) -> str:
    used = f"{pool.network}: {format_number(pool.in_use)}"
    if pool.free is None or pool.capacity is None:
        return f"{used} in use"
    return f"{used} of {format_number(pool.capacity)} in use, {format_number(pool.free)} free"


def _format_certificates(certificates: tuple[CertificateStatus, ...], at: datetime) -> Iterator[Line]:
    for position, one in enumerate(certificates):
        name = _CERTIFICATES.get(one.name, one.name)
        seconds = (one.expires_at - at).total_seconds()
        left = f"expires in {format_age(seconds)}" if seconds > 0 else f"expired {format_age(-seconds)} ago"
        text = f"{name} {left} ({one.expires_at:%Y-%m-%d %H:%M} UTC)"
        yield _format_field("" if position else "Certificates", text, "" if one.state == "well" else "red")


def _format_bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}".replace(".0 ", " ")
    return f"{count} B"


def _truncate(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _WHY else text[: _WHY - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _format_more(count: int) -> Iterator[Line]:
    if count > _MOST:
        yield Line(2, Text(f"and {count - _MOST:,} more, see -o json", style="dim"))


def _format_field(name: str, text: str, style: str = "") -> Line:
    return Line(0, Text(text, style=style), Text(f"{name:<14}", style="bold"))


def _blank_line() -> Line:
    return Line(0, Text())
