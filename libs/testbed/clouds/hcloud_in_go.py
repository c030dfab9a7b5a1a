"""The cloud's own Go module as a client of the simulated Hetzner Cloud API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


class GoBalancer(msgspec.Struct, frozen=True):
    """A load balancer as the module describes it.

    `services` have "protocol port destination check-port" each, `targets` "server private", `private` is
    "network address".
    """

    name: str
    labels: dict[str, str] | None
    type: str
    services: tuple[str, ...] | None
    targets: tuple[str, ...] | None
    private: str
    public: bool


class GoChanges(msgspec.Struct, frozen=True):
    """What became of each change ("name: outcome"), and the objects before the load balancer was deleted."""

    steps: tuple[str, ...] | None
    balancer: GoBalancer
    routes: tuple[str, ...] | None  # "destination gateway"


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
    changes: GoChanges


async def query_with_go(
    endpoint: str, token: str, servers: Sequence[int], name: str, changes: Mapping[str, Any] | None = None
) -> GoReport:
    """List everything, look up the servers by id and one by name, and compare the shapes of all answers.

    `changes` has two servers, their network and a certificate: then a load balancer and routes come and go.
    """
    query = {"endpoint": endpoint, "token": token, "servers": list(servers), "name": name, "changes": changes}
    return await run_go_client(HCLOUD_CLIENT, query, GoReport)
