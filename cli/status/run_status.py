"""Reads, evaluates and prints the status of a cluster or of its pod CIDRs; writes nothing to the cluster."""

import asyncio
import json
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from cli.cluster.access import open_kube_client
from cli.cluster.kube_reader import ClusterUnavailable, run_gathering
from cli.cluster.query import ClusterQuery
from cli.cluster.read_cluster import PARTS, read_cluster, require_nodes
from cli.cluster.snapshot import ClusterSnapshot
from cli.cluster.unavailable import Unavailable, list_known
from cli.inside.flow_client import fetch_certificates, query_flow
from cli.inside.flow_snapshot import FlowObject
from cli.lines import Line, print_error, print_json, print_lines
from cli.progress import PROGRESS
from cli.status.clouds import select_limit_candidates
from cli.status.cluster_status import ClusterStatus, build_status
from cli.status.ipam.ipam_status import build_ipam_status, read_pages, resolve_pools
from cli.status.ipam.text import format_ipam_status
from cli.status.text import format_status
from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.model import CloudConfig
from libs.common.contract.controllers import NODE_IPAM
from libs.common.contract.node import ApiObject
from libs.common.settings.cloud_config_reloader import parse_config_file, read_config_file
from services.ipam.core.effective_networks import NetworkFlags

_MAX_QUERIED_OBJECTS: Final = (
    20  # limit for each kind of Nodes, and for requests, whose last messages are queried
)


def show_status(query: ClusterQuery, *, as_json: bool) -> int:
    """Print the status and return the exit status. Raises ClusterUnavailable."""
    found = build_status(run_gathering(_read_status(query)))
    if as_json:
        print_json(_to_json(found))
    else:
        _print_status(found, Console(highlight=False))
    return found.exit_status


def watch_status(query: ClusterQuery, *, every_seconds: float, as_json: bool) -> int:
    """Print the status until Ctrl-C and return the last exit status; on a terminal, redraw in place."""
    console = Console(highlight=False)
    screen = console.is_terminal and not as_json
    status = 2
    with suppress(KeyboardInterrupt):
        if screen:
            console.set_alt_screen(True)
            console.show_cursor(False)
        try:
            while True:
                status = _show_once(query, console, as_json=as_json, screen=screen)
                time.sleep(every_seconds)
        finally:
            if screen:
                console.show_cursor(True)
                console.set_alt_screen(False)
    return status


async def _read_status(query: ClusterQuery) -> ClusterSnapshot:
    async with open_kube_client(query.kubeconfig, query.context, command="status") as kube:
        snapshot = await read_cluster(kube, query, *PARTS)
        require_nodes(snapshot)
        flow, certificates = await asyncio.gather(
            query_flow(kube, query, snapshot.pods, choose_objects(snapshot)),
            fetch_certificates(kube, query, snapshot.pods),
        )
    return msgspec.structs.replace(snapshot, flow=flow, certificates=certificates)


def choose_objects(snapshot: ClusterSnapshot) -> tuple[FlowObject, ...]:
    """Return the Nodes and requests that wait: the oldest Nodes and the newest requests."""
    known = list_known(snapshot.nodes)
    nodes = sorted((node for node in known if not node.is_initialized), key=_get_age_order)
    limited = [node for node in select_limit_candidates(known) if node.is_initialized]
    pending = sorted((one for one in list_known(snapshot.requests) if one.is_pending), key=_get_age_order)
    return (
        *(FlowObject("node", node.name) for node in nodes[:_MAX_QUERIED_OBJECTS]),
        *(FlowObject("node", node.name) for node in limited[:_MAX_QUERIED_OBJECTS]),
        *(FlowObject("csr", one.name) for one in pending[-_MAX_QUERIED_OBJECTS:]),
    )


def _get_age_order(of: ApiObject) -> tuple[float, str]:
    created = of.metadata.creation_timestamp
    return (created.timestamp() if created else 0.0, of.name)


def _to_json(found: ClusterStatus) -> dict[str, Any]:
    """Return the JSON document: without the podCIDRs of each Node, which `status ipam` lists."""
    document: dict[str, Any] = msgspec.to_builtins(found)
    if found.pod_cidrs is not None:
        del document["podCIDRs"]["podCIDRs"]
    return document


def _show_once(query: ClusterQuery, console: Console, *, as_json: bool, screen: bool) -> int:
    try:
        found = build_status(run_gathering(_read_status(query)))
    except ClusterUnavailable as error:  # keep watching: the API server may be restarting
        if screen:
            with console.capture() as drawn:
                print_lines([Line(0, Text(f"Error: {error}"))], console)
            _redraw(console, drawn.get())
        else:
            print_error(f"Error: {error}")
        return 2
    PROGRESS.end()
    if as_json:
        click.echo(json.dumps(_to_json(found)))
    elif screen:
        with console.capture() as drawn:
            console.print(f"{found.at:%Y-%m-%d %H:%M:%S} UTC, Ctrl-C to quit", style="dim")
            _print_status(found, console)
        _redraw(console, drawn.get())
    else:
        click.echo(f"--- {found.at:%Y-%m-%d %H:%M:%S} UTC")
        _print_status(found, console)
    return found.exit_status


def _print_status(found: ClusterStatus, console: Console) -> None:
    print_lines(format_status(found, width=_get_width(console)), console)


def _get_width(console: Console) -> int:
    return console.width if console.is_terminal else 0


def _redraw(console: Console, text: str) -> None:
    """Redraw the screen in place, without flicker; the last line counts the lines that do not fit."""
    lines = text.splitlines()
    room = max(2, console.height)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"... {len(lines) - room + 1} more lines: enlarge the terminal"]
    console.file.write("\x1b[H" + "\x1b[K\n".join(lines) + "\x1b[K\x1b[J")
    console.file.flush()


class IpamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The flags and the configuration of ipam."""

    network_flags: NetworkFlags = NetworkFlags()
    cloud_config: Path | None = None
    quarantine: timedelta = timedelta(minutes=10)


def show_ipam_status(query: ClusterQuery, options: IpamOptions, *, with_nodes: bool, as_json: bool) -> int:
    """Print the status and return the exit status. Raises ClusterUnavailable."""
    file = _read_cloud_config(options.cloud_config)
    snapshot = run_gathering(_read_claims(query))
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
        print_lines(format_ipam_status(found, with_nodes=with_nodes, width=_get_width(console)), console)
    return found.exit_status


async def _read_claims(query: ClusterQuery) -> ClusterSnapshot:
    async with open_kube_client(query.kubeconfig, query.context, command="status") as kube:
        return await read_cluster(kube, query, "nodes", "claims")


def _read_cloud_config(path: Path | None) -> CloudConfig:
    if path is None:
        return CloudConfig()
    config = parse_config_file(read_config_file(path), path)
    if isinstance(config, CloudConfigError):
        raise ClusterUnavailable("\n".join(config.mistakes)) from config
    return config
