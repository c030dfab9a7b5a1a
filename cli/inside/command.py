"""`talos-ccm inside`: what other commands ask of the watcher's pod. Not for people, so it is hidden."""

import asyncio
import os
import sys

import click

from cli.inside.asking import FlowSource, ask_nats, nats_of
from cli.inside.seen import Answer, Unknown, encoded, objects_of


@click.group(hidden=True)
def inside() -> None:
    """What other commands ask of the watcher's pod."""


@inside.command()
@click.option("--object", "objects", multiple=True, metavar="KIND/NAME", help="node/NAME or csr/NAME.")
def flow(objects: tuple[str, ...]) -> None:
    """What the reader's key lets one see of the flow, as JSON. NATS_URL, NATS_NKEY_FILE, NATS_CA_FILE."""
    try:
        asked = objects_of(objects)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    nats = nats_of(FlowSource(), os.environ)
    answer: Answer = Unknown(reason="NATS_URL is not set here: there is no NATS to ask")
    if nats is not None:
        answer = asyncio.run(ask_nats(nats, asked))
    sys.stdout.buffer.write(encoded(answer) + b"\n")
    sys.exit(2 if isinstance(answer, Unknown) else 0)
