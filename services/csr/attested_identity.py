"""Which addresses and names a machine's facts attest."""

from functools import lru_cache
from typing import Final

from libs.common.contract.machine import MachineFacts
from libs.common.contract.node_ips import parse_ip

_MAX_ADDRESS_LENGTH: Final = (
    64  # characters; what is longer is none, and would be remembered by whoever parses it
)
_CACHE_SIZE: Final = 16_384  # addresses
_MAX_NAME_LENGTH: Final = 253  # of a DNS name


def collect_attested_ips(facts: MachineFacts) -> frozenset[str]:
    """Every address on the machine, in canonical form; whatever is none is left out."""
    return frozenset(ip for status in facts.addresses if (ip := normalize_ip(status.address)))


def collect_attested_names(facts: MachineFacts) -> frozenset[str]:
    """Every full name of the machine, in lower case. A first label is a name only if it is told as one."""
    platform = facts.platform
    told = (facts.node_name, platform.hostname, platform.internal_dns, platform.external_dns)
    return frozenset(name.lower() for name in told if is_possible_name(name))


def is_possible_name(text: str) -> bool:
    """Whether it is worth keeping as somebody's claim to a name."""
    return 0 < len(text) <= _MAX_NAME_LENGTH


def normalize_ip(address: str) -> str:
    """An address in canonical form, without its prefix length; "" if it is none."""
    if len(address) > _MAX_ADDRESS_LENGTH:
        return ""
    return _canonical(address.partition("/")[0])


@lru_cache(
    maxsize=_CACHE_SIZE
)  # asked for each address of a machine at each word of it: a third of all our work
def _canonical(text: str) -> str:
    ip = parse_ip(text)
    return "" if ip is None else str(ip)
