"""Gathers, evaluates and prints the IPAM status; writes nothing to the cluster."""

from datetime import timedelta
from pathlib import Path

import msgspec
from rich.console import Console

from cli.cluster.kube_listing import ClusterUnavailable
from cli.lines import print_json, print_lines
from cli.status.ipam.as_json import ipam_status_to_json
from cli.status.ipam.capacity import resolve_pools
from cli.status.ipam.from_cluster import IpamQuery, gather_ipam
from cli.status.ipam.ipam_status import build_ipam_status, parse_pages
from cli.status.ipam.text import format_ipam_status
from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.model import CloudConfig
from libs.common.contract.controllers import NODE_IPAM
from libs.common.settings.cloud_config_reloader import parse_config_file, read_config_file
from services.ipam.effective_networks import NetworkFlags


class IpamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The flags and the configuration of ipam."""

    network_flags: NetworkFlags = NetworkFlags()
    cloud_config: Path | None = None
    quarantine: timedelta = timedelta(minutes=10)


def show_ipam_status(source: IpamQuery, options: IpamOptions, *, with_nodes: bool, as_json: bool) -> int:
    """Print the status and return the exit status. Raises ClusterUnavailable."""
    file = _read_cloud_config(options.cloud_config)
    seen = gather_ipam(source)
    pages = parse_pages(seen.pages)
    try:
        pools = resolve_pools(options.network_flags, file.pools, pages.pages)
    except ValueError as error:
        raise ClusterUnavailable(str(error)) from error
    found = build_ipam_status(
        pages,
        parse_pages(seen.pages_before),
        seen.nodes,
        pools,
        at=seen.at,
        quarantine=options.quarantine,
        ownership=file.ownership.for_controller(NODE_IPAM),
    )
    if as_json:
        print_json(ipam_status_to_json(found))
    else:
        console = Console(highlight=False)
        width = console.width if console.is_terminal else 0
        print_lines(format_ipam_status(found, with_nodes=with_nodes, width=width), console)
    return found.exit_status


def _read_cloud_config(path: Path | None) -> CloudConfig:
    if path is None:
        return CloudConfig()
    config = parse_config_file(read_config_file(path), path)
    if isinstance(config, CloudConfigError):
        raise ClusterUnavailable("\n".join(config.mistakes)) from config
    return config
