"""The cloud's own Go module as a client of the simulated Thalassa Cloud API."""

from __future__ import annotations

import msgspec

from libs.testbed.clouds.go_client import run_go_client
from libs.testbed.control_plane.build import THALASSA_CLIENT


class GoQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask, with a personal access token or client credentials."""

    endpoint: str
    organisation: str
    token: str = ""
    client_id: str = ""
    client_secret: str = ""
    machines: tuple[str, ...] = ()  # looked up by identity
    vpc: str = ""  # only machines of this one are listed


class GoMachine(msgspec.Struct, frozen=True):
    """A machine as the module describes it; `region` is that of its VPC."""

    identity: str
    slug: str
    status: str
    state: str
    region: str
    zone: str
    type: str
    addresses: tuple[str, ...] | None


class GoReport(msgspec.Struct, frozen=True):
    """What the module made of the answers; an error is its text."""

    error: str
    machines: tuple[GoMachine, ...] | None
    found: dict[str, str]  # by identity: the slug, "" if there is none
    vpcs: tuple[str, ...] | None
    unlike: tuple[str, ...] | None  # where answers differ from the module's types


async def query_with_go(query: GoQuery) -> GoReport:
    """List everything, look up the machines by identity, and compare the shapes of all answers."""
    return await run_go_client(THALASSA_CLIENT, query, GoReport)
