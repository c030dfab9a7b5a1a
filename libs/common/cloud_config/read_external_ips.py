"""Reads the section `global.externalIPs`."""

from libs.common.cloud_config.findings import Findings
from libs.common.cloud_config.mapping_reader import ParsedMapping
from libs.common.cloud_config.model import ExternalIPs, Network
from libs.common.cloud_config.read_pools import read_network


def read_external_ips(item: ParsedMapping | None, findings: Findings) -> ExternalIPs:
    """Return the settings; report mistakes to `findings`."""
    if item is None:
        return ExternalIPs()
    return ExternalIPs(
        discovery=item.values.get("discovery", True),
        include_cidrs=_networks(item, "includeCIDRs", findings),
        exclude_cidrs=_networks(item, "excludeCIDRs", findings),
    )


def _networks(item: ParsedMapping, key: str, findings: Findings) -> tuple[Network, ...]:
    read = (read_network(written, findings) for written in item.values.get(key, ()))
    return tuple(network for network in read if network is not None)
