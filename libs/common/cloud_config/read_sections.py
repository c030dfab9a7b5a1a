"""Reads the sections ipam.pools, global.externalIPs and ownership; validates what needs no cluster."""

from collections.abc import Iterable, Sequence
from ipaddress import ip_network
from typing import Final, Literal

from libs.common.cloud_config.findings import Findings, truncate_line
from libs.common.cloud_config.mapping_reader import Located, ParsedMapping
from libs.common.cloud_config.model import ExternalIPs, Network, Ownership, OwnershipConfig, Pool
from libs.common.cloud_config.read_rule import read_selector
from libs.common.cloud_config.selectors import PatternBudget
from libs.common.contract.controllers import canonical_name
from libs.common.contract.platforms import PLATFORMS

Family = Literal[4, 6]
FAMILIES: Final[tuple[Family, Family]] = (4, 6)
MAX_POOLS: Final = 1000
_MASK_KEY: Final[dict[Family, str]] = {4: "maskSizeIPv4", 6: "maskSizeIPv6"}


def read_pools(
    items: Sequence[ParsedMapping], findings: Findings, patterns: PatternBudget
) -> tuple[Pool, ...]:
    """Return the pools; report mistakes to `findings`."""
    if len(items) > MAX_POOLS:
        message = f"are {len(items)}, more than the {MAX_POOLS} allowed"
        findings.add_mistake(items[0].line, "ipam.pools", message)
        return ()
    pools: list[Pool] = []
    placed: list[Located[Network]] = []
    for item in items:
        networks = [each for each in item.values.get("cidrs", ()) if each.value is not None]
        placed += networks
        pools.append(
            Pool(
                name=_name(item, [pool.name for pool in pools], findings),
                index=item.index,
                line=item.line,
                selector=read_selector(item, findings, patterns),
                cidrs=tuple(str(each.value) for each in networks),
                mask_size_ipv4=_mask_size(4, item, networks, findings),
                mask_size_ipv6=_mask_size(6, item, networks, findings),
            )
        )
    _report_overlaps(placed, findings)
    _report_unused(pools, items, findings)
    return tuple(pools)


def _name(item: ParsedMapping, others: Sequence[str], findings: Findings) -> str:
    written: Located[str] | None = item.values.get("name")
    if written is None or written.value is None:
        return ""  # already reported
    if written.value in others:
        findings.add_mistake(written.line, written.path, f"is {written.value}, the name of an earlier pool")
    return written.value


def _report_overlaps(placed: Sequence[Located[Network]], findings: Findings) -> None:
    """Report each network that overlaps another one, at the later position."""
    order = {each.path: number for number, each in enumerate(placed)}
    for family in FAMILIES:
        ours = [(each.value, each) for each in placed if each.value and each.value.version == family]
        widest: tuple[Network, Located[Network]] | None = None
        for network, each in sorted(ours, key=lambda pair: (int(pair[0][0]), pair[0].prefixlen)):
            if widest is not None and int(network[0]) <= int(widest[0][-1]):
                first, second = sorted((widest[1], each), key=lambda one: order[one.path])
                message = f"is {second.value}, which overlaps {first.value} at {first.path}"
                findings.add_mistake(second.line, second.path, message)
            if widest is None or int(network[-1]) > int(widest[0][-1]):
                widest = (network, each)


def _mask_size(
    family: Family, item: ParsedMapping, networks: Sequence[Located[Network]], findings: Findings
) -> int | None:
    written: Located[int] | None = item.values.get(_MASK_KEY[family])
    if written is None or written.value is None:
        return None
    ours = [each for each in networks if each.value and each.value.version == family]
    if not ours and len(networks) == len(item.values.get("cidrs", ())):
        findings.add_mistake(written.line, written.path, f"is set, but the pool has no IPv{family} network")
    for each in ours:
        if each.value and each.value.prefixlen > written.value:
            message = f"is {written.value}: a block would be larger than {each.value} at {each.path}"
            findings.add_mistake(written.line, written.path, message)
    return written.value


# ---- pools without effect


def _report_unused(pools: Sequence[Pool], items: Sequence[ParsedMapping], findings: Findings) -> None:
    """Report pools that are never used, because every machine uses an earlier one."""
    taken: dict[int, str] = {}
    for pool, item in zip(pools, items, strict=True):
        families = {ip_network(cidr).version for cidr in pool.cidrs}
        if families and families <= taken.keys():
            by = " and ".join(dict.fromkeys(taken[family] for family in sorted(families)))
            findings.add_warning(item.line, item.path, f"is never used: every machine uses {by} before it")
        if not item.values.get("nodeSelector"):
            taken |= dict.fromkeys(families - taken.keys(), item.path)


# ---- external IPs


def read_external_ips(item: ParsedMapping | None) -> ExternalIPs:
    """Return the settings."""
    if item is None:
        return ExternalIPs()
    include, exclude = item.values.get("includeCIDRs", ()), item.values.get("excludeCIDRs", ())
    return ExternalIPs(
        discovery=item.values.get("discovery", True),
        include_cidrs=tuple(each.value for each in include if each.value),
        exclude_cidrs=tuple(each.value for each in exclude if each.value),
    )


# ---- ownership: a mistake never makes a controller manage more Nodes


def read_ownership(
    item: ParsedMapping | None, findings: Findings, patterns: PatternBudget
) -> OwnershipConfig:
    """Return the ownership; report mistakes to `findings`."""
    if item is None:
        return OwnershipConfig()
    of_controllers: dict[str, Ownership] = {}
    written: Iterable[ParsedMapping] = item.values.get("controllers", ())
    for each in written:
        name = _controller(each, of_controllers, findings)
        ownership = _ownership(each, findings, patterns)
        if name:
            of_controllers[name] = ownership
    return OwnershipConfig(default=_ownership(item, findings, patterns), by_controller=of_controllers)


def _ownership(item: ParsedMapping, findings: Findings, patterns: PatternBudget) -> Ownership:
    return Ownership(
        selector=read_selector(item, findings, patterns),
        provider_id_schemes=_schemes(item, findings),
    )


def _schemes(item: ParsedMapping, findings: Findings) -> tuple[str, ...]:
    written: Iterable[Located[str]] = item.values.get("providerIDSchemes", ())
    found: list[str] = []
    for each in written:
        if each.value is None:
            continue
        if each.value in found:
            findings.add_warning(each.line, each.path, f"is {truncate_line(each.value)}, a duplicate")
        else:
            found.append(each.value)
        if not_the_scheme := _not_the_scheme(each.value):
            findings.add_warning(each.line, each.path, f"is {each.value}, a platform: {not_the_scheme}")
    return tuple(found)


def _not_the_scheme(name: str) -> str:
    """Return why providerIDs of that platform do not begin with its name; "" if they do."""
    platform = PLATFORMS.get(name)
    if platform is None or platform.scheme == name:
        return ""
    if platform.scheme:
        return f"its providerIDs begin with {platform.scheme}://"
    return f'its providerIDs ({platform.provider_id}) have no scheme, which "none" selects'


def _controller(item: ParsedMapping, others: Iterable[str], findings: Findings) -> str:
    """Return the canonical name of the controller, "" without a valid one."""
    written: Located[str] | None = item.values.get("name")
    if written is None or written.value is None:
        return ""  # already reported
    name = canonical_name(written.value)
    if name in others:
        findings.add_mistake(
            written.line, written.path, f"is {written.value}, which an earlier entry configures"
        )
    return name
