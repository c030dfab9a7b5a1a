"""Which addresses and names a machine's facts attest."""

from functools import lru_cache
from typing import Final

from libs.common.machine import MachineFacts
from libs.common.node_ips import parse_ip

_ADDRESS_LIMIT: Final = 64  # characters; what is longer is none, and would be remembered by whoever parses it
_KEPT: Final = 16_384  # addresses
_NAME_LIMIT: Final = 253  # of a DNS name


def attested_ips(facts: MachineFacts) -> frozenset[str]:
    """Every address on the machine, in canonical form; whatever is none is left out."""
    return frozenset(ip for status in facts.addresses if (ip := bare(status.address)))


def attested_names(facts: MachineFacts) -> frozenset[str]:
    """Every full name of the machine, in lower case. A first label is a name only if it is told as one."""
    platform = facts.platform
    told = (facts.node_name, platform.hostname, platform.internal_dns, platform.external_dns)
    return frozenset(name.lower() for name in told if could_be_a_name(name))


def could_be_a_name(text: str) -> bool:
    """Whether it is worth keeping as somebody's claim to a name."""
    return 0 < len(text) <= _NAME_LIMIT


def bare(address: str) -> str:
    """An address in canonical form, without its prefix length; "" if it is none."""
    if len(address) > _ADDRESS_LIMIT:
        return ""
    return _canonical(address.partition("/")[0])


@lru_cache(maxsize=_KEPT)  # asked for each address of a machine at each word of it: a third of all our work
def _canonical(text: str) -> str:
    ip = parse_ip(text)
    return "" if ip is None else str(ip)
