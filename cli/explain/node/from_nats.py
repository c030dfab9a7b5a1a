"""Reads what the services said last of a Node from the stream. Publishes nothing."""

import asyncio
import logging
from pathlib import Path
from typing import Final

import msgspec

from cli.explain.node.last_words import LastWords, last_words, subjects_about
from libs.common.bus import BusError
from libs.common.nats_bus.bus import NatsBus
from libs.common.nats_bus.link import Timing
from libs.common.wiring import READER

_TIMING: Final = Timing(publish_deadline=3.0)  # which is that of a question, too


class Nats(msgspec.Struct, frozen=True, kw_only=True):
    """Where it is, and who we are there."""

    servers: tuple[str, ...]
    nkey_file: Path | None = None
    ca_file: Path | None = None


async def read_last_words(nats: Nats, name: str) -> LastWords:
    """All of it; why it cannot be had is told in it."""
    # The adapter logs each try to connect; here its last reason is told, once.
    logging.getLogger("libs.common.nats_bus").addHandler(logging.NullHandler())
    bus = await NatsBus.connect(
        nats.servers,
        service=READER,  # its key may hear that name's inbox, and no other
        nkey_seed_file=nats.nkey_file,
        tls_ca_file=nats.ca_file,
        timing=_TIMING,
    )
    try:
        return last_words(await asyncio.gather(*(bus.last(subject) for subject in subjects_about(name))))
    except BusError as error:
        return LastWords(problem=str(error))
    finally:
        await bus.close()
