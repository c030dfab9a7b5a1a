"""The IPAM status as text: the same on a terminal and in a pipe, except for line breaks. Pure."""

from collections.abc import Iterator
from datetime import datetime
from math import floor, log2
from typing import Final

from rich.text import Text

from cli.lines import Cell, Line, blank_line, format_field, format_more, format_table
from cli.status.ipam.ipam_status import IpamStatus, PoolStatus, QuarantinedClaim
from cli.status.ipam.pod_cidrs import ADVICE, TITLES, ClaimConflict, PodCidrState, PodCidrStatus
from libs.common.cloud_config.findings import truncate_line
from libs.common.contract.services import CLAIM_PAGES_NAMESPACE

_FIELD: Final = 11  # columns
_MOST: Final = 20  # maximum lines of conflicts of one kind, and of quarantined blocks
_EXACT: Final = 10_000_000  # from here on, numbers are shown as powers of two
_NO_POOLS: Final = (
    "The number of blocks is unknown: no pools, --cluster-cidr or published networks were found. Set "
    "--cluster-cidr."
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


def format_ipam_status(found: IpamStatus, *, with_nodes: bool, width: int) -> Iterator[Line]:
    """Yield the lines. `width` is that of the terminal, or 0 for a pipe."""
    if found.pools:
        head = ("POOL", "NETWORK", "MASK", "BLOCKS", "IN USE", "FREE", "QUARANTINED")
        rows = [_format_pool(pool, known=found.are_pools_known) for pool in found.pools]
        yield from format_table(head, rows, width=width, is_last_column_prose=False)
    if not found.are_pools_known:
        yield Line(0, Text(_NO_POOLS, style="dim"))
    yield blank_line()
    waits = f"; {found.nodes.waiting:,} without pod CIDRs" if found.nodes.waiting else ""
    yield format_field("Nodes", f"{found.nodes.count:,}{waits}", width=_FIELD)
    yield format_field("Claims", _format_claims(found), width=_FIELD)
    if with_nodes and found.pod_cidrs:
        yield blank_line()
        rows = [_format_pod_cidr(one) for one in found.pod_cidrs]
        yield from format_table(("NODE", "POD CIDR", "CLAIM"), rows, width=width)
    if found.quarantined:
        yield blank_line()
        rows = [_format_quarantined_claim(one, found.at) for one in found.quarantined[:_MOST]]
        yield from format_table(("QUARANTINED", "NODE", "UNTIL"), rows, width=width)
        yield from format_more(len(found.quarantined), _MOST, indent=0)
    yield blank_line()
    yield from _format_conflicts(found.conflicts)
    if found.unavailable:
        yield blank_line()
    for each in found.unavailable:
        yield format_field("Unavailable", each, "cyan")


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


def _format_pool(pool: PoolStatus, *, known: bool) -> list[Cell]:
    return [
        pool.name or ("(none)" if known else "?"),
        pool.network,
        f"/{pool.mask}",
        "?" if pool.capacity is None else format_number(pool.capacity),
        format_number(pool.in_use),
        ("?" if pool.free is None else format_number(pool.free), "red" if pool.free == 0 else ""),
        format_number(pool.quarantined),
    ]


def _format_claims(found: IpamStatus) -> str:
    pages = len(found.claim_pages)
    if not pages:
        return "none: ipam has no claims; at its first start it adopts the pod CIDRs of the Nodes"
    many = f"in {pages} ConfigMap{'s' if pages > 1 else ''}"
    return f"{found.claims:,}, {many} {CLAIM_PAGES_NAMESPACE}/talos-ccm-pod-cidrs-*"


def _format_pod_cidr(one: PodCidrStatus) -> list[Cell]:
    word, style = _STATES[one.state]
    block = one.pod_cidr or ""
    if one.state in ("unwritten", "leftover") and one.claim is not None:
        block, word = "-", f"{one.claim.block}, {word}"
    elif one.state == "claimedForAnother" and one.claim is not None:
        word = f"{one.claim.block} is claimed for {truncate_line(one.claim.node)}"
    elif one.state == "odd":
        word = f"none: {one.why}"
    return [one.node, truncate_line(block) or "-", (word, style)]


def _format_quarantined_claim(one: QuarantinedClaim, now: datetime) -> list[Cell]:
    seconds = int((one.until - now).total_seconds())
    left = f", in {seconds} s" if seconds < 120 else f", in {seconds // 60} min"
    if seconds <= 0:
        left = ": free after ipam's next garbage collection"
    return [one.block, truncate_line(one.node), f"{one.until:%Y-%m-%d %H:%M:%S} UTC{left}"]


def _format_conflicts(found: tuple[ClaimConflict, ...]) -> Iterator[Line]:
    if not found:
        yield format_field("Conflicts", "none", "green", width=_FIELD)
        return
    yield format_field("Conflicts", f"{len(found):,}", "red", width=_FIELD)
    for kind, title in TITLES.items():
        some = [conflict for conflict in found if conflict.kind == kind]
        if some:
            yield Line(2, Text(f"{title}: {len(some):,}", style="bold"))
            yield from (Line(4, Text(conflict.text)) for conflict in some[:_MOST])
            yield from format_more(len(some), _MOST, indent=4)
            yield Line(4, Text(ADVICE[kind], style="dim"))
