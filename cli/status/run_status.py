"""Gathers, evaluates and prints the cluster status, once or repeatedly; writes nothing to the cluster."""

import json
import time
from contextlib import suppress

import click
from rich.console import Console
from rich.text import Text

from cli.cluster.kube_listing import ClusterUnavailable
from cli.inside.flow_query import LeaseQuery
from cli.lines import Line, print_error, print_json, print_lines
from cli.progress import PROGRESS
from cli.status.as_json import status_to_json
from cli.status.cluster_status import ClusterStatus, build_status
from cli.status.from_cluster import gather_status
from cli.status.text import format_status


def show_status(source: LeaseQuery, *, as_json: bool) -> int:
    """Print the status and return the exit status. Raises ClusterUnavailable."""
    found = build_status(gather_status(source))
    if as_json:
        print_json(status_to_json(found))
    else:
        _print_status(found, Console(highlight=False))
    return found.exit_status


def watch_status(source: LeaseQuery, *, every_seconds: float, as_json: bool) -> int:
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
                status = _show_once(source, console, as_json=as_json, screen=screen)
                time.sleep(every_seconds)
        finally:
            if screen:
                console.show_cursor(True)
                console.set_alt_screen(False)
    return status


def _show_once(source: LeaseQuery, console: Console, *, as_json: bool, screen: bool) -> int:
    try:
        found = build_status(gather_status(source))
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
        click.echo(json.dumps(status_to_json(found)))
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
