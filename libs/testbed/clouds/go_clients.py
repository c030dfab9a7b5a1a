"""The clouds' own Go modules as clients of the simulated APIs: the query, and the report."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from libs.testbed.control_plane.build import (
    HCLOUD_CLIENT,
    OPENSTACK_CLIENT,
    THALASSA_CLIENT,
    GoProgram,
    build_program,
)

ReportT = TypeVar("ReportT")


async def _run(program: GoProgram, query: object, report: type[ReportT]) -> ReportT:
    """Return the report about this query. Builds the program if needed. Raises RuntimeError if it fails."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        await build_program(program), stdin=pipe, stdout=pipe, stderr=pipe
    )
    output, errors = await process.communicate(msgspec.json.encode(query))
    if process.returncode != 0:
        raise RuntimeError(f"{program.name} ended with {process.returncode}: {errors.decode()}")
    return msgspec.json.decode(output, type=report)


# ---- Hetzner Cloud


class HcloudServer(msgspec.Struct, frozen=True):
    """A server as the module describes it; `private` has "network address" each."""

    id: int
    name: str
    status: str
    location: str
    type: str
    ipv4: str
    ipv6: str
    private: tuple[str, ...] | None


class HcloudBalancer(msgspec.Struct, frozen=True):
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


class HcloudChanges(msgspec.Struct, frozen=True):
    """The outcome of each change ("name: outcome"), and the objects before the load balancer was deleted."""

    steps: tuple[str, ...] | None
    balancer: HcloudBalancer
    routes: tuple[str, ...] | None  # "destination gateway"


class HcloudReport(msgspec.Struct, frozen=True):
    """What the module made of the answers; an error is the API's code, or the text of another failure."""

    error: str
    servers: tuple[HcloudServer, ...] | None
    found: dict[str, str]  # by id: the name, "" if there is none
    by_name: int  # 0: none
    anchors: dict[str, int]  # how many there are, by the path of their list
    limit: int
    remains: int
    unlike: tuple[str, ...] | None  # where answers differ from the module's schema
    changes: HcloudChanges


async def query_hcloud(
    endpoint: str, token: str, servers: Sequence[int], name: str, changes: Mapping[str, Any] | None = None
) -> HcloudReport:
    """List everything, look up the servers by id and one by name, and compare the shapes of all answers.

    `changes` has two servers, their network and a certificate: then a load balancer and routes come and go.
    """
    query = {"endpoint": endpoint, "token": token, "servers": list(servers), "name": name, "changes": changes}
    return await _run(HCLOUD_CLIENT, query, HcloudReport)


# ---- OpenStack: gophercloud, the module of its own controller


class OpenStackQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask, by an application credential."""

    auth_url: str
    id: str
    secret: str
    region: str
    servers: tuple[str, ...] = ()  # looked up by id
    name: str = ""  # a regular expression


class OpenStackServer(msgspec.Struct, frozen=True):
    """A server as the module describes it."""

    id: str
    name: str
    status: str
    project: str
    zone: str


class OpenStackReport(msgspec.Struct, frozen=True):
    """What the module made of the answers; an error is the text of a failed login."""

    error: str
    servers: tuple[OpenStackServer, ...] | None
    found: dict[str, str] | None  # by id: the name, "" if there is none
    actions: dict[str, tuple[str, ...]] | None  # by id: "action event result" for each event
    by_name: tuple[str, ...] | None
    networks: tuple[str, ...] | None  # "id project"


async def query_openstack(query: OpenStackQuery) -> OpenStackReport:
    """List everything, and look up the servers by id, with their actions."""
    return await _run(OPENSTACK_CLIENT, query, OpenStackReport)


# ---- Thalassa Cloud


class ThalassaQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask, with a personal access token or client credentials."""

    endpoint: str
    organisation: str
    token: str = ""
    client_id: str = ""
    client_secret: str = ""
    machines: tuple[str, ...] = ()  # looked up by identity
    vpc: str = ""  # only machines of this one are listed
    # A subnet of the VPC, two machines, a security group, a reserved IP: a load balancer comes and goes
    changes: Mapping[str, Any] | None = None


class ThalassaMachine(msgspec.Struct, frozen=True):
    """A machine as the module describes it; `region` is that of its VPC."""

    identity: str
    slug: str
    status: str
    state: str
    region: str
    zone: str
    type: str
    addresses: tuple[str, ...] | None


class ThalassaBalancer(msgspec.Struct, frozen=True):
    """A load balancer as the module describes it.

    `listeners` have "protocol port target-port sources" each, `targets` are machines, `groups` are security
    groups, and `check` is "protocol port path".
    """

    status: str
    labels: dict[str, str] | None
    addresses: tuple[str, ...] | None
    reserved_ip: str
    groups: tuple[str, ...] | None
    listeners: tuple[str, ...] | None
    targets: tuple[str, ...] | None
    check: str


class ThalassaChanges(msgspec.Struct, frozen=True):
    """The outcome of each change ("name: outcome"), and the load balancer before it was deleted."""

    steps: tuple[str, ...] | None
    balancer: ThalassaBalancer


class ThalassaReport(msgspec.Struct, frozen=True):
    """What the module made of the answers; an error is its text."""

    error: str
    machines: tuple[ThalassaMachine, ...] | None
    found: dict[str, str]  # by identity: the slug, "" if there is none
    vpcs: tuple[str, ...] | None
    unlike: tuple[str, ...] | None  # where answers differ from the module's types
    changes: ThalassaChanges


async def query_thalassa(query: ThalassaQuery) -> ThalassaReport:
    """List everything, look up the machines by identity, and compare the shapes of all answers."""
    return await _run(THALASSA_CLIENT, query, ThalassaReport)
