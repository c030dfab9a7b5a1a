"""Reads the sections ipam.pools, global.externalIPs and ownership; validates what needs no cluster."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import IPv6Network, ip_address, ip_network
from typing import Final, Literal

import msgspec

from libs.common.cloud_config.file_keys import MASK_SIZES, POOL_NAME, SCHEME
from libs.common.cloud_config.findings import Findings, suggest_name, truncate_line
from libs.common.cloud_config.kubernetes_names import key_problem
from libs.common.cloud_config.mapping_reader import LocatedText, ParsedMapping
from libs.common.cloud_config.model import ExternalIPs, Network, Ownership, OwnershipConfig, Pool
from libs.common.cloud_config.read_rule import read_selector
from libs.common.cloud_config.selectors import PatternBudget
from libs.common.contract.controllers import NODE_CONTROLLER_NAMES, canonical_name
from libs.common.contract.platforms import PLATFORMS

Family = Literal[4, 6]
FAMILIES: Final[tuple[Family, Family]] = (4, 6)
MAX_POOLS: Final = 1000
_NAME: Final = re.compile(POOL_NAME)
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_NO_PODS: Final = tuple(
    map(
        ip_network,
        ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "::/127", "fe80::/10", "ff00::/8"),
    )
)  # nothing there, loopback, link-local, multicast
_MASK_KEY: Final[dict[Family, str]] = {4: "maskSizeIPv4", 6: "maskSizeIPv6"}


class _Placed(msgspec.Struct, frozen=True):
    """A network and its position in the file."""

    network: Network
    line: int
    path: str


def read_pools(
    items: Sequence[ParsedMapping], findings: Findings, patterns: PatternBudget
) -> tuple[Pool, ...]:
    """Return the pools; report mistakes to `findings`."""
    if len(items) > MAX_POOLS:
        message = f"are {len(items)}, more than the {MAX_POOLS} allowed"
        findings.add_mistake(items[0].line, "ipam.pools", message)
        return ()
    pools: list[Pool] = []
    placed: list[_Placed] = []
    for item in items:
        networks = list(_networks(item, findings))
        placed += networks
        pools.append(
            Pool(
                name=_name(item, [pool.name for pool in pools], findings),
                index=item.index,
                line=item.line,
                selector=read_selector(item, findings, patterns),
                cidrs=tuple(str(each.network) for each in networks),
                mask_size_ipv4=_mask_size(4, item, networks, findings),
                mask_size_ipv6=_mask_size(6, item, networks, findings),
            )
        )
    _report_overlaps(placed, findings)
    _report_unused(pools, items, findings)
    return tuple(pools)


def _name(item: ParsedMapping, others: Sequence[str], findings: Findings) -> str:
    written: LocatedText | None = item.values.get("name")
    if written is None:
        return ""  # already reported
    if not _NAME.fullmatch(written.text):
        what = "must be of small letters, digits and -, at most 63, with a letter or digit at both ends"
        findings.add_mistake(
            written.line, written.path, f'is "{truncate_line(written.text)}", and a pool\'s name {what}'
        )
    elif written.text in others:
        findings.add_mistake(written.line, written.path, f"is {written.text}, the name of an earlier pool")
    return written.text


# ---- networks


def _networks(item: ParsedMapping, findings: Findings) -> Iterator[_Placed]:
    written: tuple[LocatedText, ...] = item.values.get("cidrs", ())
    for each in written:
        network = read_network(each, findings, _why_not_for_pods)
        if network is not None:
            yield _Placed(network, each.line, each.path)


def read_network(
    written: LocatedText, findings: Findings, find_problem: Callable[[Network], str] = lambda network: ""
) -> Network | None:
    """Return the network; report a mistake and return None if it is invalid or `find_problem` rejects it."""
    problem = _text_problem(written.text)
    network = None if problem else ip_network(written.text, strict=False)
    if network is not None:
        problem = _network_problem(written.text, network) or find_problem(network)
    if problem:
        findings.add_mistake(written.line, written.path, f'is "{truncate_line(written.text)}", {problem}')
        return None
    return network


def _text_problem(text: str) -> str:
    try:
        ip_network(text, strict=False)
    except ValueError:
        is_network = False
    else:
        is_network = "%" not in text  # the zone of a link
    if not is_network:
        return "not a network such as 10.8.0.0/16 or fd00:8::/56"
    if not _NUMBER.fullmatch(text.rpartition("/")[2]) or "/" not in text:  # a netmask, or one address
        return "which has no prefix length, as in 10.8.0.0/16"
    return ""


def _network_problem(text: str, network: Network) -> str:
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        return "an IPv4-mapped IPv6 network: write it as IPv4"
    if ip_address(text.rpartition("/")[0]) != network.network_address:
        return f"an address within {network}: write the network itself"
    return ""


def _why_not_for_pods(network: Network) -> str:
    for odd in _NO_PODS:
        if odd.version == network.version and odd.overlaps(network):
            return f"which overlaps {odd}, which pods cannot use"
    return ""


def _report_overlaps(placed: Sequence[_Placed], findings: Findings) -> None:
    """Report each network that overlaps another one, at the later position."""
    order = {each.path: number for number, each in enumerate(placed)}
    for family in FAMILIES:
        widest: _Placed | None = None
        ours = [each for each in placed if each.network.version == family]
        for each in sorted(ours, key=lambda each: (int(each.network[0]), each.network.prefixlen)):
            if widest is not None and int(each.network[0]) <= int(widest.network[-1]):
                first, second = sorted((widest, each), key=lambda one: order[one.path])
                message = f"is {second.network}, which overlaps {first.network} at {first.path}"
                findings.add_mistake(second.line, second.path, message)
            if widest is None or int(each.network[-1]) > int(widest.network[-1]):
                widest = each


# ---- masks


def _mask_size(
    family: Family, item: ParsedMapping, networks: Sequence[_Placed], findings: Findings
) -> int | None:
    written: LocatedText | None = item.values.get(_MASK_KEY[family])
    if written is None:
        return None
    least, most = MASK_SIZES[family]
    mask = int(written.text) if _NUMBER.fullmatch(written.text) else -1
    ours = [each for each in networks if each.network.version == family]
    if not least <= mask <= most:
        what = f"not a number between {least} and {most}"
        findings.add_mistake(written.line, written.path, f'is "{truncate_line(written.text)}", {what}')
        return None
    if not ours and len(networks) == len(item.values.get("cidrs", ())):
        findings.add_mistake(written.line, written.path, f"is set, but the pool has no IPv{family} network")
    for each in ours:
        if each.network.prefixlen > mask:
            message = f"is {mask}: a block would be larger than {each.network} at {each.path}"
            findings.add_mistake(written.line, written.path, message)
    return mask


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


def read_external_ips(item: ParsedMapping | None, findings: Findings) -> ExternalIPs:
    """Return the settings; report mistakes to `findings`."""
    if item is None:
        return ExternalIPs()
    return ExternalIPs(
        discovery=item.values.get("discovery", True),
        include_cidrs=_external_networks(item, "includeCIDRs", findings),
        exclude_cidrs=_external_networks(item, "excludeCIDRs", findings),
    )


def _external_networks(item: ParsedMapping, key: str, findings: Findings) -> tuple[Network, ...]:
    read = (read_network(written, findings) for written in item.values.get(key, ()))
    return tuple(network for network in read if network is not None)


# ---- ownership: a mistake never makes a controller manage more Nodes

_SCHEME: Final = re.compile(SCHEME)


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
        selector=read_selector(item, findings, patterns, read_key=_label_key),
        provider_id_schemes=_schemes(item, findings),
    )


def _label_key(item: ParsedMapping, findings: Findings) -> str:
    """Return the key as written: labels are case-sensitive."""
    key: str = item.values.get("key", "")
    if "key" in item.values and (problem := key_problem(key)):
        message = f'is "{truncate_line(key)}", which is not a valid label key: {problem}'
        findings.add_mistake(item.line, f"{item.path}.key", message)
    return key


def _schemes(item: ParsedMapping, findings: Findings) -> tuple[str, ...]:
    written: Iterable[LocatedText] = item.values.get("providerIDSchemes", ())
    found = []
    for each in written:
        if not _SCHEME.fullmatch(each.text):
            message = f'is "{truncate_line(each.text)}", not the scheme of a providerID, such as hcloud'
            findings.add_mistake(each.line, each.path, message)
        elif each.text in found:
            findings.add_warning(each.line, each.path, f"is {truncate_line(each.text)}, a duplicate")
        else:
            found.append(each.text)
        if not_the_scheme := _not_the_scheme(each.text):
            findings.add_warning(each.line, each.path, f"is {each.text}, a platform: {not_the_scheme}")
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
    written: LocatedText | None = item.values.get("name")
    if written is None:
        return ""  # already reported
    name = canonical_name(written.text)
    if written.text not in NODE_CONTROLLER_NAMES:
        near = suggest_name(written.text, NODE_CONTROLLER_NAMES)
        message = f'is "{truncate_line(written.text)}", not one of {", ".join(NODE_CONTROLLER_NAMES)}{near}'
        findings.add_mistake(written.line, written.path, message)
        return ""
    if name in others:
        findings.add_mistake(
            written.line, written.path, f"is {written.text}, which an earlier entry configures"
        )
    return name
