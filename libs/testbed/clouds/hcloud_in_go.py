"""The cloud's own Go module as a client of the simulated Hetzner Cloud API."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from libs.testbed.clouds.go_client import run_go_client
from libs.testbed.control_plane.build import HCLOUD_CLIENT


class GoServer(msgspec.Struct, frozen=True):
    """A server as the module describes it; `private` has "network address" each."""

    id: int
    name: str
    status: str
    location: str
    type: str
    ipv4: str
    ipv6: str
    private: tuple[str, ...] | None


class GoReport(msgspec.Struct, frozen=True):
    """What the module made of the answers; an error is the API's code, or the text of another failure."""

    error: str
    servers: tuple[GoServer, ...] | None
    found: dict[str, str]  # by id: the name, "" if there is none
    by_name: int  # 0: none
    anchors: dict[str, int]  # how many there are, by the path of their list
    limit: int
    remains: int
    unlike: tuple[str, ...] | None  # where answers differ from the module's schema


async def query_with_go(endpoint: str, token: str, servers: Sequence[int], name: str) -> GoReport:
    """List everything, look up the servers by id and one by name, and compare the shapes of all answers."""
    query = {"endpoint": endpoint, "token": token, "servers": list(servers), "name": name}
    return await run_go_client(HCLOUD_CLIENT, query, GoReport)
