"""`talos-ccm inside`: commands that other commands run in a pod of a service; hidden from people."""

import asyncio
import os
import sys
from typing import Any

import click
import msgspec


@click.group(hidden=True)
def inside() -> None:
    """Internal: commands that talos-ccm runs in a pod."""


@inside.command()
@click.option(
    "--object",
    "objects",
    type=(click.Choice(["node", "csr"]), str),
    multiple=True,
    metavar="KIND NAME",
    help="Object to query. Repeatable.",
)
def flow(objects: tuple[tuple[Any, str], ...]) -> None:
    """Print the messages and consumers of NATS as JSON.

    Reads NATS_URL, NATS_NKEY_FILE and NATS_CA_FILE.
    """
    from cli.cluster.query import ClusterQuery, resolve_nats_access  # noqa: PLC0415
    from cli.inside.flow_reader import query_nats  # noqa: PLC0415 - `--help` need not load it
    from cli.inside.flow_snapshot import FlowObject, FlowResult, FlowUnavailable  # noqa: PLC0415

    nats = resolve_nats_access(ClusterQuery(), os.environ)
    answer: FlowResult = FlowUnavailable(reason="NATS_URL is not set in this pod")
    if nats is not None:
        answer = asyncio.run(query_nats(nats, [FlowObject(*each) for each in objects]))
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.exit(2 if isinstance(answer, FlowUnavailable) else 0)


@inside.command()
@click.option(
    "--node-ip", "node_ips", multiple=True, metavar="ADDRESS", help="Machine to query (address). Repeatable."
)
@click.option(
    "--endpoints", default="", metavar="HOST,...", help="Same value as --talos-endpoints of metadata."
)
@click.option("--offline", is_flag=True, help="Query no endpoint and no machine.")
def talos(node_ips: tuple[str, ...], endpoints: str, *, offline: bool) -> None:
    """Print the state of the mounted Talos credential as JSON."""
    from cli.inside.talos_probe import probe_credential  # noqa: PLC0415 - `--help` need not load it

    report = asyncio.run(probe_credential(node_ips, endpoints, offline=offline))
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.exit(1 if report.problem else 0)
