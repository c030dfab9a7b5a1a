"""The IPAM status as text: the same on a terminal and in a pipe, except for line breaks. Pure."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from math import floor, log2
from typing import Final

from rich.text import Text

from cli.lines import Line
from cli.status.ipam.ipam_status import IpamStatus, PoolStatus, QuarantinedBlock
from cli.status.ipam.pod_cidrs import ADVICE, TITLES, ClaimConflict, PodCidrState, PodCidrStatus
from cli.table import format_table
from libs.common.cloud_config.findings import truncate_line
from libs.common.contract.services import CLAIM_PAGES_NAMESPACE

_MOST: Final = 20  # maximum lines of conflicts of one kind, and of quarantined blocks
_EXACT: Final = 10_000_000  # from here on, numbers are shown as powers of two
_NO_POOLS: Final = (
    "The number of blocks is unknown: set --cluster-cidr, or --cloud-config with the pools, as for ipam."
)
_STATES: Final[dict[PodCidrState, tuple[str, str]]] = {
    "claimed": ("claimed", ""),
    "unclaimed": ("none", "yellow"),
    "claimedForAnother": ("another Node's", "red"),
    "odd": ("none", "red"),
    "unknown": ("unreadable claim page", "red"),
    "unwritten": ("not on the Node yet", "yellow"),
    "leftover": ("obsolete until ipam's next garbage collection", "dim"),
    "none": ("none, waiting for ipam", "yellow"),
    "foreign": ("none, the Node is not managed", "dim"),
}


def format_ipam_status(standing: IpamStatus, *, with_nodes: bool, width: int) -> Iterator[Line]:
    """Yield the lines. `width` is that of the terminal, or 0 for a pipe."""
    yield from _format_pools(standing, width)
    yield _blank_line()
    yield from _format_counts(standing)
    if with_nodes and standing.pod_cidrs:
        yield _blank_line()
        rows = [_format_pod_cidr(held) for held in standing.pod_cidrs]
        yield from format_table(("NODE", "POD CIDR", "CLAIM"), rows, width=width, is_last_column_prose=True)
    if standing.quarantined:
        yield _blank_line()
        yield from _format_quarantined(standing, width)
    yield _blank_line()
    yield from _format_conflicts(standing.conflicts)


def format_number(value: int) -> str:
    """Return a small number with all digits, a large one as a power of two and the difference to it."""
    if value < _EXACT:
        return f"{value:,}"
    power = value.bit_length() - 1
    if value == 1 << power:
        return f"2^{power}"
    missing = (1 << power + 1) - value
    if missing < _EXACT:
        return f"2^{power + 1} - {missing:,}"
    # Rounded down, so that a used pool is never shown as empty.
    return f"about 2^{min(floor(log2(value) * 100) / 100, power + 0.99):.2f}"


def _format_pools(standing: IpamStatus, width: int) -> Iterator[Line]:
    head = ("POOL", "NETWORK", "MASK", "BLOCKS", "IN USE", "FREE", "QUARANTINED")
    if standing.pools:
        yield from format_table(
            head, [_format_pool(pool, known=standing.are_pools_known) for pool in standing.pools], width=width
        )
    if not standing.are_pools_known:
        yield Line(0, Text(_NO_POOLS, style="dim"))


def _format_pool(pool: PoolStatus, *, known: bool) -> list[Text]:
    name = pool.name or ("(none)" if known else "?")
    free = "?" if pool.free is None else format_number(pool.free)
    return [
        Text(name),
        Text(pool.network),
        Text(f"/{pool.mask}"),
        Text("?" if pool.capacity is None else format_number(pool.capacity)),
        Text(format_number(pool.in_use)),
        Text(free, style="red" if pool.free == 0 else ""),
        Text(format_number(pool.quarantined)),
    ]


def _format_counts(standing: IpamStatus) -> Iterator[Line]:
    waits = f"; {standing.nodes.waiting:,} without pod CIDRs" if standing.nodes.waiting else ""
    yield _format_field("Nodes", f"{standing.nodes.count:,}{waits}")
    if pages := len(standing.claim_pages):
        many = f"in {pages} ConfigMap{'s' if pages > 1 else ''}"
        yield _format_field(
            "Claims", f"{standing.claims:,}, {many} {CLAIM_PAGES_NAMESPACE}/talos-ccm-pod-cidrs-*"
        )
    else:
        yield _format_field(
            "Claims", "none: ipam has no claims; at its first start it adopts the pod CIDRs of the Nodes"
        )


def _format_pod_cidr(held: PodCidrStatus) -> list[Text]:
    word, style = _STATES[held.state]
    block = held.pod_cidr or ""
    if held.state in ("unwritten", "leftover") and held.claim is not None:
        block, word = "-", f"{held.claim.block}, {word}"
    elif held.state == "claimedForAnother" and held.claim is not None:
        word = f"{held.claim.block} is claimed for {truncate_line(held.claim.node)}"
    elif held.state == "odd":
        word = f"none: {held.why}"
    return [Text(held.node), Text(truncate_line(block) or "-"), Text(word, style=style)]


def _format_quarantined(standing: IpamStatus, width: int) -> Iterator[Line]:
    rows = [_format_quarantined_block(one, standing.at) for one in standing.quarantined[:_MOST]]
    yield from format_table(("QUARANTINED", "NODE", "UNTIL"), rows, width=width, is_last_column_prose=True)
    yield from _format_more(len(standing.quarantined))


def _format_quarantined_block(one: QuarantinedBlock, now: datetime) -> list[Text]:
    return [
        Text(one.block),
        Text(truncate_line(one.node)),
        Text(_format_remaining(one.until, now)),
    ]


def _format_remaining(until: datetime, now: datetime) -> str:
    seconds = int((until - now) / timedelta(seconds=1))
    if seconds <= 0:
        return f"{until:%Y-%m-%d %H:%M:%S} UTC: free after ipam's next garbage collection"
    left = f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"
    return f"{until:%Y-%m-%d %H:%M:%S} UTC, in {left}"


def _format_conflicts(found: tuple[ClaimConflict, ...]) -> Iterator[Line]:
    if not found:
        yield _format_field("Conflicts", "none", "green")
        return
    yield _format_field("Conflicts", f"{len(found):,}", "red")
    for kind, title in TITLES.items():
        some = [conflict for conflict in found if conflict.kind == kind]
        if some:
            yield Line(2, Text(f"{title}: {len(some):,}", style="bold"))
            yield from (Line(4, Text(conflict.text)) for conflict in some[:_MOST])
            yield from _format_more(len(some), indent=4)
            yield Line(4, Text(ADVICE[kind], style="dim"))


def _format_more(count: int, *, indent: int = 0) -> Iterator[Line]:
    if count > _MOST:
        yield Line(indent, Text(f"and {count - _MOST:,} more, see -o json", style="dim"))


def _format_field(name: str, text: str, style: str = "") -> Line:
    return Line(0, Text(text, style=style), Text(f"{name:<11}", style="bold"))


def _blank_line() -> Line:
    return Line(0, Text())
