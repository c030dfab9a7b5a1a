"""The claims as Kubernetes keeps them: a ConfigMap per aligned range, named by the range and by no pool.

So blocks of any mask, of an old and of a new configuration, meet in one page and are compared there. A page
is never deleted: with it would go what protects blocks that are claimed and not yet on a Node.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Final

import msgspec

from services.ipam.network_set import NetworkSet, contains, parse_cached_network
from services.ipam.networks import Network

PAGE_LENGTHS: Final = {4: 12, 6: 48}  # what pages are called in clusters that exist: never change it
PAGE_BYTES: Final = 1_000_000  # of the 1 MiB that a ConfigMap may hold
NAME_PREFIX: Final = "talos-ccm-pod-cidrs-"
DATA_KEY: Final = "claims.json"
_FORMAT: Final = 1
_GONE_SINCE_BYTES: Final = 48  # so that a full page can still say which of its claims are gone


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A block is for the Node of this uid, and for nobody else while that Node exists without podCIDRs."""

    block: str  # canonical
    uid: str
    node: str  # its name, for people
    gone_since: datetime | None = None  # a quorum list, begun after the claim was read, lacked the uid


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page as it was read; its claims are disjoint."""

    range: str
    resource_version: str = ""  # "": not there yet
    claims: Mapping[str, Claim] = {}
    created: datetime | None = None  # by Kubernetes; None for what is not there, or was not read since

    @property
    def size(self) -> int:
        """Bytes, at most, when each of its claims is marked as gone."""
        return 64 + sum(map(claim_size, self.claims.values()))


class UnreadablePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page that we do not understand: nothing is claimed in it or freed until somebody mends it."""

    name: str
    reason: str


class StoredPage(msgspec.Struct, frozen=True, kw_only=True):
    """The ConfigMap: name, resourceVersion ("" to create it), data; `created` is Kubernetes' to write."""

    name: str
    resource_version: str = ""
    data: Mapping[str, str] = {}
    created: datetime | None = None


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
    """Range of the page that a block belongs to. Raises ValueError for a block wider than a page."""
    network = parse_cached_network(block)
    length = PAGE_LENGTHS[network.family]
    if network.prefix < length:
        raise ValueError(f"{block} is wider than a page of claims, /{length}")
    host_bits = network.bits - length
    return str(Network(network.family, network.first >> host_bits << host_bits, length))


@lru_cache(maxsize=1 << 12)
def page_name(page_range: str) -> str:
    """Name of its ConfigMap: talos-ccm-pod-cidrs-10.240.0.0-12, talos-ccm-pod-cidrs-fd00-0010-0244-48."""
    network = parse_cached_network(page_range)
    address = page_range.partition("/")[0]
    if network.family == 6:
        address = "-".join(f"{network.first >> shift & 0xFFFF:04x}" for shift in (112, 96, 80))  # the /48
    return f"{NAME_PREFIX}{address}-{network.prefix}"


def claim_size(claim: Claim) -> int:
    """Bytes of a claim in its page, at most."""
    return len(claim.block) + len(claim.uid) + len(claim.node) + 32 + _GONE_SINCE_BYTES


def encode_page(page: Page) -> StoredPage:
    """The page as it is written, to replace the very version that it was read at."""
    claims = {
        block: _StoredClaim(claim.uid, claim.node, claim.gone_since)
        for block, claim in sorted(page.claims.items())
    }
    text = msgspec.json.encode(_StoredClaims(_FORMAT, page.range, claims)).decode()
    return StoredPage(
        name=page_name(page.range), resource_version=page.resource_version, data={DATA_KEY: text}
    )


def decode_page(stored_page: StoredPage) -> Page | UnreadablePage:
    """What a ConfigMap says, if that can be a page: this version, this range, disjoint blocks inside it."""
    try:
        said = msgspec.json.decode(stored_page.data.get(DATA_KEY, ""), type=_StoredClaims)
        reason = _explain_unreadable(stored_page.name, said)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        reason = str(error)
    if reason:
        return UnreadablePage(name=stored_page.name, reason=reason)
    claims = {
        block: Claim(block=block, uid=claim.uid, node=claim.node, gone_since=claim.gone_since)
        for block, claim in said.claims.items()
    }
    return Page(
        range=said.range,
        resource_version=stored_page.resource_version,
        claims=claims,
        created=stored_page.created,
    )


def _explain_unreadable(name: str, said: _StoredClaims) -> str:
    if said.version != _FORMAT:
        return f"it is of version {said.version}, known is {_FORMAT}"
    if page_name(said.range) != name or page_range_of(said.range) != said.range:
        return f"it speaks of {said.range}"
    whole = parse_cached_network(said.range)
    seen = NetworkSet()
    for block, claim in said.claims.items():
        if str(parse_cached_network(block)) != block or not contains(whole, parse_cached_network(block)):
            return f"{block} is no block of {said.range}"
        if not claim.uid:
            return f"{block} is claimed for no uid"
        if claim.gone_since is not None and claim.gone_since.tzinfo is None:
            return f"{block} is gone since a time without its zone"
        other = seen.find_overlap(parse_cached_network(block))
        if other is not None:
            return f"{block} and {other} overlap"
        seen.add(parse_cached_network(block))
    return ""
