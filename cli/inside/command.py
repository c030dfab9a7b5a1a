"""`talos-ccm inside`: commands that other commands run in the watcher's pod; hidden from people."""

import asyncio
import os
import sys

import click


@click.group(hidden=True)
def inside() -> None:
    """Internal: commands that talos-ccm runs in a pod."""


@inside.command()
@click.option(
    "--object",
    "objects",
    multiple=True,
    metavar="KIND/NAME",
    help="Object to query: node/NAME or csr/NAME. Repeatable.",
)
def flow(objects: tuple[str, ...]) -> None:
    """Print the messages and consumers of NATS as JSON.

    Reads NATS_URL, NATS_NKEY_FILE and NATS_CA_FILE.
    """
    from cli.inside.flow_query import FlowQuery, resolve_nats_access  # noqa: PLC0415
    from cli.inside.flow_reader import query_nats  # noqa: PLC0415 - `--help` need not load it
    from cli.inside.flow_snapshot import FlowResult, FlowUnavailable, encode_result, parse_objects  # noqa: PLC0415

    try:
        asked = parse_objects(objects)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    nats = resolve_nats_access(FlowQuery(), os.environ)
    answer: FlowResult = FlowUnavailable(reason="NATS_URL is not set in this pod")
    if nats is not None:
        answer = asyncio.run(query_nats(nats, asked))
    sys.stdout.buffer.write(encode_result(answer) + b"\n")
    sys.exit(2 if isinstance(answer, FlowUnavailable) else 0)


@inside.command()
def certificates() -> None:
    """Print the expiry of the Talos certificate of this pod as JSON."""
    from cli.cluster.credentials import read_talos_certificate_expiry  # noqa: PLC0415
    from cli.inside.flow_snapshot import CertificateSnapshot, encode_certificates  # noqa: PLC0415

    until = read_talos_certificate_expiry()
    found = (CertificateSnapshot(name="talos", expires_at=until),) if until else ()
    sys.stdout.buffer.write(encode_certificates(found) + b"\n")
