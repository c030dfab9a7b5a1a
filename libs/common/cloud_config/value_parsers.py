"""Parses the texts of the file by the kind of their key. A ValueError completes "is "<text>", ..."."""

import re
from collections.abc import Callable, Mapping
from ipaddress import IPv6Network, ip_address, ip_network
from typing import Final

from libs.common.cloud_config.fact_fields import FIELDS, canonical_key, find_field
from libs.common.cloud_config.file_keys import OPERATORS, POOL_NAME, SCHEME, FileKey
from libs.common.cloud_config.findings import suggest_name, truncate_line
from libs.common.cloud_config.kubernetes_names import key_problem, label_value_problem
from libs.common.cloud_config.model import Network
from libs.common.contract.controllers import NODE_CONTROLLER_NAMES

_POOL_NAME: Final = re.compile(POOL_NAME)
_POOL_NAME_EXPECTED: Final = (
    "and a pool's name must be of small letters, digits and -, at most 63, with a letter or digit at both "
    "ends"
)
_SCHEME: Final = re.compile(SCHEME)
_SCHEME_EXPECTED: Final = "not the scheme of a providerID, such as hcloud"
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_KEYS: Final = [f"{field.key}.<name>" if field.is_map else field.key for field in FIELDS]
# Labels of Nodes that people write in place of a fact with another name.
_FACTS_OF_LABELS: Final = {
    "hostname": "nodename",
    "lifecycle": "spot",
    "control-plane": "machinetype",
    "worker": "machinetype",
}
_NO_PODS: Final = tuple(
    map(
        ip_network,
        ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "::/127", "fe80::/10", "ff00::/8"),
    )
)  # nothing there, loopback, link-local, multicast


def find_fact_problem(key: str) -> str:
    """Return that no machine has the fact of a canonical key, with the nearest known one; "" if some do."""
    if find_field(key) is not None:
        return ""
    label = key.rpartition("/")[2]  # people write topology.kubernetes.io/region
    near = suggest_name(_FACTS_OF_LABELS.get(label, label.replace("-", "")), _KEYS)
    return f'names "{truncate_line(key)}", an unknown fact, which is absent on every machine{near}'


def parse_network(text: str) -> Network:
    """Return a network in its standard form."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        network = None
    if network is None or "%" in text:  # the zone of a link
        raise ValueError("not a network such as 10.8.0.0/16 or fd00:8::/56")
    if "/" not in text or not _NUMBER.fullmatch(text.rpartition("/")[2]):  # one address, or a netmask
        raise ValueError("which has no prefix length, as in 10.8.0.0/16")
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise ValueError("an IPv4-mapped IPv6 network: write it as IPv4")
    if ip_address(text.rpartition("/")[0]) != network.network_address:
        raise ValueError(f"an address within {network}: write the network itself")
    return network


def _parse_pod_network(text: str) -> Network:
    network = parse_network(text)
    for odd in _NO_PODS:
        if odd.version == network.version and odd.overlaps(network):
            raise ValueError(f"which overlaps {odd}, which pods cannot use")
    return network


def _parse_number(text: str, key: FileKey) -> int:
    least, most = key.bounds
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise ValueError(f"not a number between {least} and {most}")
    return int(text)


def _matching(text: str, pattern: re.Pattern[str], expected: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(expected)
    return text


def _parse_choice(text: str, known: tuple[str, ...]) -> str:
    if text not in known:
        raise ValueError(f"not one of {', '.join(known)}{suggest_name(text, known)}")
    return text


def _valid(text: str, problem: str, what: str) -> str:
    if problem:
        raise ValueError(f"which is not a valid {what}: {problem}")
    return text


# By kind, of a key or of the items of its list; texts of other kinds are used as written.
PARSERS: Final[Mapping[str, Callable[[str, FileKey], object]]] = {
    "fact key": lambda text, _: canonical_key(text),
    "label key": lambda text, _: _valid(text, key_problem(text), "label key"),
    "label value": lambda text, _: _valid(text, label_value_problem(text), "label value"),
    "operator": lambda text, _: _parse_choice(text, OPERATORS),
    "name": lambda text, _: _matching(text, _POOL_NAME, _POOL_NAME_EXPECTED),
    "number": _parse_number,
    "controller": lambda text, _: _parse_choice(text, NODE_CONTROLLER_NAMES),
    "networks": lambda text, _: parse_network(text),
    "pod networks": lambda text, _: _parse_pod_network(text),
    "schemes": lambda text, _: _matching(text, _SCHEME, _SCHEME_EXPECTED),
}
