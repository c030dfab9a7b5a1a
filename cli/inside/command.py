"""`talos-ccm inside`: what other commands ask of the watcher's pod. Not for people, so it is hidden."""

import asyncio
import os
import sys

import click


@click.group(hidden=True)
def inside() -> None:
    """What other commands ask of the watcher's pod."""


@inside.command()
@click.option("--object", "objects", multiple=True, metavar="KIND/NAME", help="node/NAME or csr/NAME.")
def flow(objects: tuple[str, ...]) -> None:
    """What the reader's key lets one see of the flow, as JSON. NATS_URL, NATS_NKEY_FILE, NATS_CA_FILE."""
    from cli.inside.gather import ask_nats  # noqa: PLC0415 - `--help` need not load it
    from cli.inside.seen import Answer, Unknown, encoded, objects_of  # noqa: PLC0415
    from cli.inside.source import FlowSource, nats_of  # noqa: PLC0415

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


@inside.command()
def certificates() -> None:
    """Until when the credentials of this pod are good, as JSON: those by which metadata asks machines."""
    from cli.credentials import talos_certificate_until  # noqa: PLC0415
    from cli.inside.seen import CertificateSeen, certificates_encoded  # noqa: PLC0415

    until = talos_certificate_until()
    found = (CertificateSeen(name="talos", expires_at=until),) if until else ()
    sys.stdout.buffer.write(certificates_encoded(found) + b"\n")
