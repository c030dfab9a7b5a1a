"""The addresses and names that a machine's facts attest."""

from collections.abc import Container

from libs.common.contract.dns_names import MAX_NAME_LENGTH
from libs.common.contract.ip_addresses import canonical_ip
from libs.common.contract.machine import MachineFacts
from libs.common.contract.public_addresses import counts


def collect_attested_ips(facts: MachineFacts, answered: Container[str] = ()) -> frozenset[str]:
    """Return every address on the machine that counts, in canonical form, without invalid ones.

    Those in `answered` count in any case: the machine answered there.
    """
    listed = ((canonical_ip(status.address), status) for status in facts.addresses)
    return frozenset(ip for ip, status in listed if ip and (ip in answered or counts(status, facts)))


def collect_answered_ips(facts: MachineFacts) -> frozenset[str]:
    """Return the node IPs at which the machine answered, in canonical form."""
    return frozenset(ip for text in (facts.node_ip, *facts.answering_addresses) if (ip := canonical_ip(text)))


def collect_attested_names(facts: MachineFacts) -> frozenset[str]:
    """Return every reported name of the machine, in lower case; a bare first label only if reported."""
    platform = facts.platform
    reported_names = (facts.node_name, platform.hostname, platform.internal_dns, platform.external_dns)
    return frozenset(name.lower() for name in reported_names if is_possible_name(name))


def is_possible_name(text: str) -> bool:
    """Whether the text is short enough to index as a claim to a name, and not empty."""
    return 0 < len(text) <= MAX_NAME_LENGTH
