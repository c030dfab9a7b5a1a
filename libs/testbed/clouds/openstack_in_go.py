"""gophercloud, the Go module of the cloud's own controller, as a client of the simulated OpenStack."""

from __future__ import annotations

import msgspec

from libs.testbed.clouds.go_client import run_go_client
from libs.testbed.control_plane.build import OPENSTACK_CLIENT


class GoQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask, by an application credential."""

    auth_url: str
    id: str
    secret: str
    region: str
    servers: tuple[str, ...] = ()  # looked up by id
    name: str = ""  # a regular expression


class GoServer(msgspec.Struct, frozen=True):
    """A server as the module describes it."""

    id: str
    name: str
    status: str
    project: str
    zone: str


class GoReport(msgspec.Struct, frozen=True):
    """What the module made of the answers; an error is the text of a failed login."""

    error: str
    servers: tuple[GoServer, ...] | None
    found: dict[str, str] | None  # by id: the name, "" if there is none
    actions: dict[str, tuple[str, ...]] | None  # by id: "action event result" for each event
    by_name: tuple[str, ...] | None
    networks: tuple[str, ...] | None  # "id project"


async def query_with_go(query: GoQuery) -> GoReport:
    """List everything, and look up the servers by id, with their actions."""
    return await run_go_client(OPENSTACK_CLIENT, query, GoReport)
