"""Reads, evaluates and prints the IPAM status; writes nothing to the cluster."""

from datetime import timedelta
from pathlib import Path

import msgspec
from rich.console import Console

from cli.cluster.access import open_kube_client
from cli.cluster.kube_reader import ClusterUnavailable, run_gathering
from cli.cluster.query import ClusterQuery
from cli.cluster.read_cluster import read_cluster, require_nodes
from cli.cluster.snapshot import ClusterSnapshot
from cli.cluster.unavailable import Unavailable
from cli.lines import print_json, print_lines
from cli.status.ipam.capacity import resolve_pools
from cli.status.ipam.ipam_status import build_ipam_status, read_pages
from cli.status.ipam.text import format_ipam_status
from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.model import CloudConfig
from libs.common.contract.controllers import NODE_IPAM
from libs.common.settings.cloud_config_reloader import parse_config_file, read_config_file
from services.ipam.core.effective_networks import NetworkFlags


class IpamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The flags and the configuration of ipam."""

    network_flags: NetworkFlags = NetworkFlags()
    cloud_config: Path | None = None
    quarantine: timedelta = timedelta(minutes=10)


def show_ipam_status(query: ClusterQuery, options: IpamOptions, *, with_nodes: bool, as_json: bool) -> int:
    """Print the status and return the exit status. Raises ClusterUnavailable."""
    file = _read_cloud_config(options.cloud_config)
    snapshot = run_gathering(_read_snapshot(query))
    nodes, claims = require_nodes(snapshot), snapshot.claims
    if isinstance(claims, Unavailable):
        raise ClusterUnavailable(f"the Kubernetes API request failed: {claims.reason}")
    try:
        pools = resolve_pools(options.network_flags, file.pools, read_pages(claims.after))
    except ValueError as error:
        raise ClusterUnavailable(str(error)) from error
    found = build_ipam_status(
        claims,
        nodes,
        pools,
        at=snapshot.at,
        quarantine=options.quarantine,
        ownership=file.ownership.for_controller(NODE_IPAM),
    )
    if as_json:
        print_json(found)
    else:
        console = Console(highlight=False)
        width = console.width if console.is_terminal else 0
        print_lines(format_ipam_status(found, with_nodes=with_nodes, width=width), console)
    return found.exit_status


async def _read_snapshot(query: ClusterQuery) -> ClusterSnapshot:
    async with open_kube_client(query.kubeconfig, query.context, command="status") as kube:
        return await read_cluster(kube, query, "nodes", "claims")


def _read_cloud_config(path: Path | None) -> CloudConfig:
    if path is None:
        return CloudConfig()
    config = parse_config_file(read_config_file(path), path)
    if isinstance(config, CloudConfigError):
        raise ClusterUnavailable("\n".join(config.mistakes)) from config
    return config
