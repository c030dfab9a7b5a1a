"""The addresses and names that a machine's facts attest."""

from functools import lru_cache
from typing import Final

from libs.common.contract.machine import MachineFacts
from libs.common.contract.node_ips import parse_ip

# characters; no address is longer, and the parser's cache would keep the text
_MAX_ADDRESS_LENGTH: Final = 64
_CACHE_SIZE: Final = 16_384  # addresses
_MAX_NAME_LENGTH: Final = 253  # characters of a DNS name


def collect_attested_ips(facts: MachineFacts) -> frozenset[str]:
    """Return every address on the machine in canonical form, without invalid ones."""
    return frozenset(ip for status in facts.addresses if (ip := normalize_ip(status.address)))


def collect_attested_names(facts: MachineFacts) -> frozenset[str]:
    """Return every reported name of the machine, in lower case; a bare first label only if reported."""
    platform = facts.platform
    reported_names = (facts.node_name, platform.hostname, platform.internal_dns, platform.external_dns)
    return frozenset(name.lower() for name in reported_names if is_possible_name(name))


def is_possible_name(text: str) -> bool:
    """Whether the text is short enough to index as a claim to a name, and not empty."""
    return 0 < len(text) <= _MAX_NAME_LENGTH


def normalize_ip(address: str) -> str:
    """Return an address in canonical form, without its prefix length; "" if it is invalid."""
    if len(address) > _MAX_ADDRESS_LENGTH:
        return ""
    return _canonical(address.partition("/")[0])


@lru_cache(
    maxsize=_CACHE_SIZE
)  # csr parses each address of a machine in each message about it: a third of its CPU time
def _canonical(text: str) -> str:
    ip = parse_ip(text)
    return "" if ip is None else str(ip)
