"""Which addresses and names a machine's facts attest."""

from libs.common.machine import MachineFacts
from libs.common.node_ips import parse_ip


def attested_ips(facts: MachineFacts) -> frozenset[str]:
    """Every address on the machine, in canonical form; whatever is none is left out."""
    return frozenset(ip for status in facts.addresses if (ip := bare(status.address)))


def attested_names(facts: MachineFacts) -> frozenset[str]:
    """Every full name of the machine, in lower case. A first label is a name only if it is told as one."""
    platform = facts.platform
    told = (facts.node_name, platform.hostname, platform.internal_dns, platform.external_dns)
    return frozenset(name.lower() for name in told if name)


def bare(address: str) -> str:
    """An address in canonical form, without its prefix length; "" if it is none."""
    ip = parse_ip(address.partition("/")[0])
    return "" if ip is None else str(ip)
