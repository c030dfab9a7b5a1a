"""Reads, evaluates and prints the status of a cluster or of its pod CIDRs; writes nothing to the cluster."""

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from cli.cluster.access import open_kube_client
from cli.cluster.kube_reader import run_gathering
from cli.cluster.pod_commands import fetch_certificates, query_flow
from cli.cluster.query import ClusterQuery
from cli.cluster.read_cluster import PARTS, read_cluster, require
from cli.cluster.snapshot import ClusterSnapshot
from cli.cluster.unavailable import Unavailable, list_known
from cli.command_exit import CommandError
from cli.inside.flow_snapshot import FlowObject
from cli.lines import Line, get_width, print_error, print_lines, print_result
from cli.progress import PROGRESS
from cli.render.compiled_config import read_config
from cli.status.cluster_status import ClusterStatus, build_status
from cli.status.ipam.ipam_status import assess_pod_cidrs
from cli.status.ipam.text import format_ipam_status
from cli.status.text import format_status
from libs.common.contract.instances import read_instance_record
from libs.common.contract.node import ApiObject
from services.lifecycle.core.evidence import is_not_ready

# Limit for each kind of Nodes, and for requests, whose last messages are queried.
_MAX_QUERIED_OBJECTS: Final = 20


def show_status(query: ClusterQuery, output: str) -> int:
    """Print the status and return the exit status. Raises CommandError."""
    found = build_status(run_gathering(_read_status(query)))
    print_result(output, format_status(found, width=get_width()), _to_json(found))
    return found.exit_status


def watch_status(query: ClusterQuery, *, every_seconds: float, output: str) -> int:
    """Print the status until Ctrl-C and return the last exit status; on a terminal, redraw in place."""
    console = Console(highlight=False)
    screen = console.is_terminal and output == "text"
    status = 2
    with suppress(KeyboardInterrupt):
        if screen:
            console.set_alt_screen(True)
            console.show_cursor(False)
        try:
            while True:
                status = _show_once(query, console, output=output, screen=screen)
                time.sleep(every_seconds)
        finally:
            if screen:
                console.show_cursor(True)
                console.set_alt_screen(False)
    return status


async def _read_status(query: ClusterQuery) -> ClusterSnapshot:
    async with open_kube_client(query, command="status") as kube:
        snapshot = await read_cluster(kube, query, *PARTS)
        require(snapshot.nodes)
        flow, certificates = await asyncio.gather(
            query_flow(kube, query, snapshot.pods, choose_objects(snapshot)),
            fetch_certificates(kube, query, snapshot.pods),
        )
    return msgspec.structs.replace(snapshot, flow=flow, certificates=certificates)


def choose_objects(snapshot: ClusterSnapshot) -> tuple[FlowObject, ...]:
    """Return the Nodes and requests that wait: the oldest Nodes and the newest requests.

    Of the initialized Nodes that are not Ready, those with a record of a cloud come first.
    """
    known = list_known(snapshot.nodes)
    nodes = sorted((node for node in known if not node.is_initialized), key=_get_age_order)
    lost = [node for node in known if node.is_initialized and is_not_ready(node)]
    lost.sort(key=lambda node: read_instance_record(node) is None)
    pending = sorted((one for one in list_known(snapshot.requests) if one.is_pending), key=_get_age_order)
    return (
        *(FlowObject("node", node.name) for node in nodes[:_MAX_QUERIED_OBJECTS]),
        *(FlowObject("node", node.name) for node in lost[:_MAX_QUERIED_OBJECTS]),
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


def _show_once(query: ClusterQuery, console: Console, *, output: str, screen: bool) -> int:
    try:
        found = build_status(run_gathering(_read_status(query)))
    except CommandError as error:  # keep watching: the API server may be restarting
        if screen:
            _redraw(console, [Line(0, Text(f"Error: {error}"))])
        else:
            print_error(f"Error: {error}")
        return 2
    PROGRESS.end()
    at, lines = f"{found.at:%Y-%m-%d %H:%M:%S} UTC", format_status(found, width=get_width())
    if output == "json":
        click.echo(json.dumps(_to_json(found)))
    elif screen:
        _redraw(console, [Line(0, Text(f"{at}, Ctrl-C to quit", style="dim")), *lines])
    else:
        click.echo(f"--- {at}")
        print_lines(lines, console)
    return found.exit_status


def _redraw(console: Console, lines: Iterable[Line]) -> None:
    """Redraw the screen in place, without flicker; the last row counts the rows that do not fit."""
    with console.capture() as drawn:
        print_lines(lines, console)
    rows = drawn.get().splitlines()
    room = max(2, console.height)
    if len(rows) > room:
        rows = [*rows[: room - 1], f"... {len(rows) - room + 1} more lines: enlarge the terminal"]
    console.file.write("\x1b[H" + "\x1b[K\n".join(rows) + "\x1b[K\x1b[J")
    console.file.flush()


def show_ipam_status(
    query: ClusterQuery,
    flags: Mapping[str, str],
    cloud_config: Path | None,
    *,
    with_nodes: bool,
    output: str,
) -> int:
    """Print the status and return the exit status; flags and file are those of ipam.

    Raises CommandError.
    """
    file = read_config(cloud_config).document if cloud_config else None
    snapshot = run_gathering(_read_claims(query))
    if isinstance(snapshot.claims, Unavailable):
        raise CommandError(f"the Kubernetes API request failed: {snapshot.claims.reason}")
    try:
        found = assess_pod_cidrs(snapshot, snapshot.claims, flags, file)
    except ValueError as error:
        raise CommandError(str(error)) from error
    print_result(output, format_ipam_status(found, with_nodes=with_nodes, width=get_width()), found)
    return found.exit_status


async def _read_claims(query: ClusterQuery) -> ClusterSnapshot:
    async with open_kube_client(query, command="status") as kube:
        snapshot = await read_cluster(kube, query, "nodes", "claims", "pods", "config")
        require(snapshot.nodes)
        return msgspec.structs.replace(snapshot, flow=await query_flow(kube, query, snapshot.pods))
