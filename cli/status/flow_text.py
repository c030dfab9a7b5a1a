"""How the flow stands, in words, the same on a terminal and in a pipe but for the breaking of lines. Pure."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from rich.text import Text

from cli.lines import Line
from cli.status.flow_nodes import NodesStanding, StuckNode
from cli.status.flow_parts import CertificateStanding, LeaderStanding, QueueStanding, ServiceStanding, State
from cli.status.flow_requests import OpenRequest, RequestsStanding
from cli.status.flow_seen import Untold
from cli.status.flow_standing import FlowStanding, dead_letter
from cli.status.standing import Standing
from cli.status.text import number
from cli.table import table
from libs.common.cloud_config.findings import truncate_line

_MOST: Final = 10  # lines of one kind
_WHY: Final = 200  # characters of somebody else's text
_STYLES: Final[dict[State, str]] = {"well": "green", "wrong": "red", "unknown": "cyan", "absent": "dim"}
_CERTIFICATES: Final = {
    "nats-server": "NATS",
    "nats-authority": "NATS' authority",
    "talos": "metadata's for Talos",
}


def of_flow(found: FlowStanding, *, width: int) -> Iterator[Line]:
    """`width` of the terminal, 0 in a pipe."""
    yield _verdict(found)
    yield from (Line(2, Text(text, style="red")) for text in found.wrong)
    if found.nats_problem and not found.all_in_one:
        about = "" if found.nats_problem.startswith("NATS") else "NATS: "
        yield Line(2, Text(f"{about}{found.nats_problem}", style="cyan"))
    yield from (Line(2, Text(text, style="cyan")) for text in found.untold)
    yield _blank()
    if found.services:
        yield from _services(found.services, width)
        yield _blank()
    yield _field("Leader", *_of_leader(found.leader))
    yield from _messages(found, width)
    yield _blank()
    yield from _nodes(found.nodes, width)
    yield from _requests(found.requests, width)
    yield from _pod_cidrs(found.pod_cidrs)
    yield from _certificates(found.certificates, found.at)


def ago(seconds: float) -> str:
    """A length of time, as short as it can be read."""
    seconds = max(0, round(seconds))
    for unit, size, until in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < until:
            return f"{seconds // size} {unit}"
    return f"{seconds // 86_400} d"


def _verdict(found: FlowStanding) -> Line:
    if found.wrong:
        many = "1 thing is" if len(found.wrong) == 1 else f"{len(found.wrong)} things are"
        return Line(0, Text(f"{many} wrong", style="bold red"))
    if found.unknown:
        return Line(0, Text("nothing wrong is seen, and not everything can be seen", style="bold cyan"))
    return Line(0, Text("all is well", style="bold green"))


def _services(services: tuple[ServiceStanding, ...], width: int) -> Iterator[Line]:
    rows = [_of_service(one) for one in services]
    yield from table(("SERVICE", "PODS", "RESTARTS", ""), rows, width=width, flows=True)


def _of_service(one: ServiceStanding) -> list[Text]:
    known = one.pods is not None
    words = {"well": "there", "wrong": "missing", "unknown": "?", "absent": "-"}
    return [
        Text(one.name),
        Text(f"{one.ready}/{one.pods}" if known else words[one.state], style=_STYLES[one.state]),
        Text(str(one.restarts) if known else "?", style="yellow" if one.restarts else "dim"),
        Text(_cut(one.text), style="" if one.state == "wrong" else "dim"),
    ]


def _of_leader(leader: LeaderStanding) -> tuple[str, str]:
    told = [truncate_line(leader.holder)] if leader.holder else []
    if leader.lease_seconds is not None:
        told.append(f"Lease renewed {ago(leader.lease_seconds)} ago")
    if leader.word_seconds is not None:
        told.append(f"last word {ago(leader.word_seconds)} ago")
    if leader.text:
        told.append(_cut(leader.text))
    return ", ".join(told), _STYLES[leader.state] if leader.state != "well" else ""


def _messages(found: FlowStanding, width: int) -> Iterator[Line]:
    if found.all_in_one:
        yield _field("Messages", "none to see: all services run in one process, without NATS", "dim")
        return
    if found.nats_problem:
        yield _field("Messages", "unknown", "cyan")
        return
    stream = found.stream
    if stream is None:
        yield _field("Stream", "it does not exist", "red")
        return
    room = f" of {_bytes(stream.max_bytes)}" if stream.max_bytes else ""
    yield _field("Stream", f"{stream.messages:,} messages, {_bytes(stream.bytes)}{room}")
    yield _blank()
    rows = [_of_queue(one) for one in found.queues]
    head = ("QUEUE", "WAITING", "IN HAND", "AGAIN", "LAST MOVED", "")
    yield from table(head, rows, width=width, flows=True)
    yield _blank()
    yield _field(
        "Dead letters", f"{found.dead_count:,}" if found.dead_count else "none", "red" if found.dead else ""
    )
    letters = [(word, *dead_letter(word)) for word in found.dead[:_MOST]]
    for word, about, reason in letters:
        age = ago((found.at - word.published_at).total_seconds())
        yield Line(2, Text(_cut(reason)), Text(f"{truncate_line(about)}, {age} ago: "))
    yield from _more(found.dead_count)


def _of_queue(one: QueueStanding) -> list[Text]:
    queue = one.queue
    idle = "-" if one.idle_seconds is None else f"{ago(one.idle_seconds)} ago"
    late = "red" if one.state == "wrong" else "dim" if one.state == "absent" else ""
    return [
        Text(queue.name),
        Text(f"{queue.pending:,}", style=late),
        Text(f"{queue.unacknowledged:,}"),
        Text(f"{queue.redelivered:,}", style="yellow" if queue.redelivered else ""),
        Text(idle),
        Text(one.text, style=_STYLES[one.state]),
    ]


def _nodes(nodes: NodesStanding, width: int) -> Iterator[Line]:
    told = f"{nodes.count:,}, {nodes.usable:,} usable"
    if nodes.not_ready:
        told += f" ({nodes.not_ready:,} of them not ready)"
    if nodes.uninitialized:
        oldest = nodes.uninitialized[0].seconds
        since = f", the oldest for {ago(oldest)}" if oldest is not None else ""
        told += f"; {len(nodes.uninitialized):,} uninitialized{since}"
    yield _field("Nodes", told, "red" if nodes.stuck else "")
    if nodes.uninitialized:
        rows = [_of_node(one) for one in nodes.uninitialized[:_MOST]]
        yield from table(("NODE", "FOR", "WHY"), rows, indent=2, width=width, flows=True)
        yield from _more(len(nodes.uninitialized))


def _of_node(one: StuckNode) -> list[Text]:
    age = "?" if one.seconds is None else ago(one.seconds)
    return [
        Text(one.name),
        Text(age),
        Text(_cut(one.why), style="dim" if one.joining else "red" if one.blocked else "yellow"),
    ]


def _requests(requests: RequestsStanding | Untold, width: int) -> Iterator[Line]:
    if isinstance(requests, Untold):
        yield _field("CSRs", "unknown", "cyan")
        return
    superseded = f" ({requests.superseded:,} superseded)" if requests.superseded else ""
    told = (
        f"{requests.pending:,} pending{superseded}, {requests.denied:,} denied, "
        f"{requests.not_issued:,} approved but not issued, {requests.issued:,} issued"
    )
    yield _field("CSRs", told, "red" if any(one.wrong for one in requests.open) else "")
    if requests.open:
        rows = [_of_request(one) for one in requests.open[:_MOST]]
        yield from table(("CSR", "NODE", "STATE", "FOR", "WHY"), rows, indent=2, width=width, flows=True)
        yield from _more(len(requests.open))


def _of_request(one: OpenRequest) -> list[Text]:
    state = {"not-issued": "not issued"}.get(one.state, one.state)
    return [
        Text(truncate_line(one.name)),
        Text(truncate_line(one.node)),
        Text(state, style="red" if one.wrong else ""),
        Text("?" if one.seconds is None else ago(one.seconds)),
        Text(_cut(one.why)),
    ]


def _pod_cidrs(found: Standing | Untold) -> Iterator[Line]:
    if isinstance(found, Untold):
        yield _field("Pod CIDRs", "unknown", "cyan")
        return
    if not found.pages:
        yield _field("Pod CIDRs", "not given by ipam: it has no claims", "dim")
        return
    told = [_of_pool(pool.cidr, pool.in_use, pool.free, pool.capacity) for pool in found.pools if pool.name]
    if not found.pools_known:
        told = [f"{number(sum(pool.in_use for pool in found.pools))} blocks in use"]
    if found.waiting:
        told.append(f"{found.waiting:,} Nodes wait for one")
    if found.resting:
        told.append(f"{len(found.resting):,} rest")
    told.append(f"{len(found.conflicts):,} conflicts" if found.conflicts else "no conflicts")
    yield _field("Pod CIDRs", "; ".join(told), "red" if found.conflicts else "")


def _of_pool(cidr: str, in_use: int, free: int | None, capacity: int | None) -> str:
    if free is None or capacity is None:
        return f"{cidr}: {number(in_use)} in use"
    return f"{cidr}: {number(in_use)} of {number(capacity)} in use, {number(free)} free"


def _certificates(certificates: tuple[CertificateStanding, ...], at: datetime) -> Iterator[Line]:
    for position, one in enumerate(certificates):
        name = _CERTIFICATES.get(one.certificate.name, one.certificate.name)
        seconds = (one.certificate.expires_at - at).total_seconds()
        left = f"ends in {ago(seconds)}" if seconds > 0 else f"ended {ago(-seconds)} ago"
        text = f"{name} {left} ({one.certificate.expires_at:%Y-%m-%d %H:%M} UTC)"
        yield _field("" if position else "Certificates", text, "" if one.state == "well" else "red")


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}".replace(".0 ", " ")
    return f"{count} B"


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _WHY else text[: _WHY - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _more(count: int) -> Iterator[Line]:
    if count > _MOST:
        yield Line(2, Text(f"and {count - _MOST:,} more: -o json has them", style="dim"))


def _field(name: str, text: str, style: str = "") -> Line:
    return Line(0, Text(text, style=style), Text(f"{name:<14}", style="bold"))


def _blank() -> Line:
    return Line(0, Text())
