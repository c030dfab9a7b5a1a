"""The addresses and names that a machine's facts attest."""

from libs.common.contract.dns_names import MAX_NAME_LENGTH
from libs.common.contract.ip_addresses import canonical_ip
from libs.common.contract.machine import MachineFacts


def collect_attested_ips(facts: MachineFacts) -> frozenset[str]:
    """Return every address on the machine in canonical form, without invalid ones."""
    return frozenset(ip for status in facts.addresses if (ip := canonical_ip(status.address)))


def collect_attested_names(facts: MachineFacts) -> frozenset[str]:
    """Return every reported name of the machine, in lower case; a bare first label only if reported."""
    platform = facts.platform
    reported_names = (facts.node_name, platform.hostname, platform.internal_dns, platform.external_dns)
    return frozenset(name.lower() for name in reported_names if is_possible_name(name))


def is_possible_name(text: str) -> bool:
    """Whether the text is short enough to index as a claim to a name, and not empty."""
    return 0 < len(text) <= MAX_NAME_LENGTH
