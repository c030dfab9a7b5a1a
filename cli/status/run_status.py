"""Reads, evaluates and prints the status of a cluster, once or repeatedly; writes nothing to the cluster."""

import asyncio
import json
import time
from contextlib import suppress
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
from cli.cluster.unavailable import Unavailable
from cli.inside.flow_client import fetch_certificates, query_flow
from cli.inside.flow_snapshot import FlowObject
from cli.lines import Line, print_error, print_json, print_lines
from cli.progress import PROGRESS
from cli.status.cluster_status import ClusterStatus, build_status
from cli.status.text import format_status
from libs.common.contract.node import ApiObject

_MAX_QUERIED_OBJECTS: Final = 20  # limit for Nodes and for requests whose last messages are queried


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
            query_flow(kube, query, snapshot.pods, _choose_objects(snapshot)),
            fetch_certificates(kube, query, snapshot.pods),
        )
    return msgspec.structs.replace(snapshot, flow=flow, certificates=certificates)


def _choose_objects(snapshot: ClusterSnapshot) -> tuple[FlowObject, ...]:
    """Return the Nodes and requests that wait: the oldest Nodes and the newest requests."""
    nodes = sorted((node for node in snapshot.known_nodes if not node.is_initialized), key=_get_age_order)
    requests = () if isinstance(snapshot.requests, Unavailable) else snapshot.requests
    pending = sorted((one for one in requests if one.signing_request.is_pending), key=_get_age_order)
    return (
        *(FlowObject("node", node.name) for node in nodes[:_MAX_QUERIED_OBJECTS]),
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
    width = console.width if console.is_terminal else 0
    print_lines(format_status(found, width=width), console)


def _redraw(console: Console, text: str) -> None:
    """Redraw the screen in place, without flicker; the last line counts the lines that do not fit."""
    lines = text.splitlines()
    room = max(2, console.height)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"... {len(lines) - room + 1} more lines: enlarge the terminal"]
    console.file.write("\x1b[H" + "\x1b[K\n".join(lines) + "\x1b[K\x1b[J")
    console.file.flush()
