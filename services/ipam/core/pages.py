"""Encodes claims as pages: one ConfigMap per aligned address range, named after the range, not a pool.

So claims of any mask, of old and new configurations, are in the same page and can be compared. A page is
never deleted, because it protects blocks that are claimed and not yet written to a Node.
"""

from collections.abc import Container, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import Final

import msgspec

from libs.common.contract.networks import Network, contains, overlaps, parse_cached_network
from libs.common.contract.node import ObjectMeta
from libs.common.kube.objects import ConfigMap

PAGE_LENGTHS: Final = {4: 12, 6: 48}  # never change it: existing clusters have pages with these names
PAGE_BYTES: Final = 1_000_000  # a ConfigMap may have 1 MiB
NAME_PREFIX: Final = "talos-ccm-pod-cidrs-"
LABELS: Final = {
    "app.kubernetes.io/managed-by": "talos-ccm",
    "app.kubernetes.io/component": "pod-cidrs",
}
DATA_KEY: Final = "claims.json"
_FORMAT: Final = 1
_GONE_SINCE_BYTES: Final = 48  # reserved per claim, so that a full page can still record `gone_since`


ClaimKey = tuple[str, str]  # block and uid


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Reserves a block for the Node of this uid, as long as that Node exists without podCIDRs."""

    block: str  # canonical
    uid: str
    node: str  # its name, for messages
    # when a quorum list lacked the uid; that list began after the claim was read
    gone_since: datetime | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page as last read; its claims are disjoint."""

    range: str
    resource_version: str = ""  # "": the page does not exist yet
    claims: Mapping[str, Claim] = {}
    created: datetime | None = None  # set by Kubernetes; None before the page was created and read

    @property
    def size(self) -> int:
        """Maximum size in bytes, with `gone_since` in each claim."""
        return 64 + sum(map(claim_size, self.claims.values()))


class UnreadablePage(msgspec.Struct, frozen=True, kw_only=True):
    """An invalid page: ipam claims and releases nothing in it until an operator repairs it."""

    name: str
    reason: str


class Pages(msgspec.Struct, frozen=True, kw_only=True):
    """All pages as read at one moment, with the writes of this process since then."""

    by_range: Mapping[str, Page] = {}
    unreadable: tuple[UnreadablePage, ...] = ()
    data: Mapping[str, Mapping[str, str]] = {}  # by range, from which a page was decoded

    @property
    def names(self) -> set[str]:
        """The names of all pages."""
        return {page.name for page in self.unreadable} | set(map(page_name, self.by_range))

    def explain_closed(self) -> dict[str, str]:
        """Return by name why ipam claims nothing in a page."""
        return {page.name: f"{page.name} is unreadable: {page.reason}" for page in self.unreadable}

    def replace(self, page: Page, written: ConfigMap) -> "Pages":
        """Return these pages with one that was written, and its new resourceVersion."""
        page = msgspec.structs.replace(page, resource_version=written.metadata.resource_version)
        return msgspec.structs.replace(
            self,
            by_range={**self.by_range, page.range: page},
            data={**self.data, page.range: written.data},
        )

    def find_absent(self, uids: Container[str]) -> set[ClaimKey]:
        """Return the claims for all other uids than these."""
        return {
            (block, claim.uid)
            for page in self.by_range.values()
            for block, claim in page.claims.items()
            if claim.uid not in uids
        }


class _StoredClaim(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    uid: str
    node: str = ""
    gone_since: datetime | None = None


class _StoredClaims(msgspec.Struct, frozen=True):
    version: int
    range: str
    claims: dict[str, _StoredClaim]


@lru_cache(maxsize=1 << 16)
def page_range_of(block: str) -> str:
    """Return the range of the page for a block. Raises ValueError for a block wider than a page."""
    network = parse_cached_network(block)
    length = PAGE_LENGTHS[network.family]
    if network.prefix < length:
        raise ValueError(f"{block} is wider than a page of claims, /{length}")
    host_bits = network.bits - length
    return str(Network(network.family, network.first >> host_bits << host_bits, length))


@lru_cache(maxsize=1 << 12)
def page_name(page_range: str) -> str:
    """Return the name of its ConfigMap, like talos-ccm-pod-cidrs-10.240.0.0-12."""
    network = parse_cached_network(page_range)
    address = page_range.partition("/")[0]
    if network.family == 6:
        address = "-".join(f"{network.first >> shift & 0xFFFF:04x}" for shift in (112, 96, 80))  # the /48
    return f"{NAME_PREFIX}{address}-{network.prefix}"


def claim_size(claim: Claim) -> int:
    """Return the maximum size of a claim in its page, in bytes."""
    return len(claim.block) + len(claim.uid) + len(claim.node) + 32 + _GONE_SINCE_BYTES


def encode_page(page: Page) -> ConfigMap:
    """Encode a page; it replaces exactly the version that was read. resourceVersion "" creates it."""
    claims = {
        block: _StoredClaim(claim.uid, claim.node, claim.gone_since)
        for block, claim in sorted(page.claims.items())
    }
    text = msgspec.json.encode(_StoredClaims(_FORMAT, page.range, claims)).decode()
    name, version = page_name(page.range), page.resource_version
    return ConfigMap(
        metadata=ObjectMeta(name=name, resource_version=version, labels=LABELS), data={DATA_KEY: text}
    )


def decode_page(config_map: ConfigMap) -> Page | UnreadablePage:
    """Decode a ConfigMap; UnreadablePage unless version, range and blocks are valid and disjoint."""
    metadata = config_map.metadata
    try:
        stored = msgspec.json.decode(config_map.data.get(DATA_KEY, ""), type=_StoredClaims)
        reason = _explain_unreadable(metadata.name, stored)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        reason = str(error)
    if reason:
        return UnreadablePage(name=metadata.name, reason=reason)
    claims = {
        block: Claim(block=block, uid=claim.uid, node=claim.node, gone_since=claim.gone_since)
        for block, claim in stored.claims.items()
    }
    return Page(
        range=stored.range,
        resource_version=metadata.resource_version,
        claims=claims,
        created=metadata.creation_timestamp,
    )


def is_page(config_map: ConfigMap) -> bool:
    """Whether it is a page, by its name: one that lost its labels counts, too."""
    return config_map.metadata.name.startswith(NAME_PREFIX)


def decode_pages(stored: Iterable[ConfigMap], before: Pages) -> Pages:
    """Decode all pages; those with the same data as before are not decoded again: 2000 claims take 20 ms."""
    known = {page_name(page.range): page for page in before.by_range.values()}
    by_range: dict[str, Page] = {}
    unreadable: list[UnreadablePage] = []
    data: dict[str, Mapping[str, str]] = {}
    for one in stored:
        page: Page | UnreadablePage | None = known.get(one.metadata.name)
        if isinstance(page, Page) and before.data[page.range] == one.data:
            version, created = one.metadata.resource_version, one.metadata.creation_timestamp
            page = msgspec.structs.replace(page, resource_version=version, created=created)
        else:
            page = decode_page(one)
        if isinstance(page, Page):
            by_range[page.range], data[page.range] = page, one.data
        else:
            unreadable.append(page)
    return Pages(by_range=by_range, unreadable=tuple(unreadable), data=data)


def _explain_unreadable(name: str, stored: _StoredClaims) -> str:
    if stored.version != _FORMAT:
        return f"its version is {stored.version}, supported is {_FORMAT}"
    if page_name(stored.range) != name or page_range_of(stored.range) != stored.range:
        return f"its range is {stored.range}"
    whole = parse_cached_network(stored.range)
    for block, claim in stored.claims.items():
        if str(parse_cached_network(block)) != block or not contains(whole, parse_cached_network(block)):
            return f"{block} is not a block of {stored.range}"
        if not claim.uid:
            return f"the claim of {block} has no uid"
        if claim.gone_since is not None and claim.gone_since.tzinfo is None:
            return f"goneSince of {block} has no time zone"
    networks = sorted(map(parse_cached_network, stored.claims), key=lambda network: network.first)
    for one, other in pairwise(networks):
        if overlaps(one, other):
            return f"{one} and {other} overlap"
    return ""
