"""The simulated cloud: regions with servers and networks, projects, credentials and tokens."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from libs.testbed.clouds.openstack.objects import (
    Document,
    Microversion,
    make_action,
    make_event,
    make_network,
    make_server,
)


class SimRegion:
    """The services of one region; each object belongs to a project."""

    def __init__(self) -> None:
        self.servers: dict[str, Document] = {}  # oldest first
        self.deleted: dict[str, Document] = {}  # Nova still has them and their actions
        self.actions: dict[str, list[Document]] = {}  # of a server, newest first
        self.networks: dict[str, Document] = {}


class SimToken(msgspec.Struct, frozen=True):
    """What a token may do; an administrator sees the servers of all projects by their id."""

    project: str
    is_admin: bool
    issued_at: float  # Unix time


class SimProject:
    """One project in one region."""

    def __init__(self, project: str, region: SimRegion, ids: Iterator[str]) -> None:
        self.id = project
        self.region = region
        self._ids = ids

    def add_server(self, name: str, **details: Any) -> str:
        """Create a server with the details of `make_server`; return its id."""
        server_id = next(self._ids)
        server = make_server(server_id, name, project=self.id, **details)
        self.region.servers[server_id] = server
        self._record(server, "create", [make_event("compute__do_build_and_run_instance")])
        return server_id

    def add_servers(self, count: int, prefix: str = "server") -> list[str]:
        """Create many servers; return their ids."""
        return [self.add_server(f"{prefix}-{number}") for number in range(count)]

    def add_network(self, name: str = "net", *, shared: bool = False) -> str:
        """Create a network; return its id."""
        network_id = next(self._ids)
        self.region.networks[network_id] = make_network(network_id, name, project=self.id, shared=shared)
        return network_id

    def update_server(self, server_id: str, **fields: Any) -> None:
        """Change fields, such as `name` or `status`."""
        self.region.servers[server_id] |= fields

    def delete_server(
        self,
        server_id: str,
        *,
        action: str = "delete",
        message: str | None = None,
        events: Sequence[Document] = (make_event("compute_terminate_instance"),),
    ) -> None:
        """Delete a server. By default Nova's compute service reports that it succeeded."""
        server = self.region.servers.pop(server_id)
        self.region.deleted[server_id] = server
        self._record(server, action, events, message)

    def lose_server(self, server_id: str) -> None:
        """Let Nova have neither the server nor its actions, as after a purge of its database."""
        del self.region.servers[server_id], self.region.actions[server_id]

    def _record(
        self, server: Document, action: str, events: Sequence[Document], message: str | None = None
    ) -> None:
        request_id = f"req-{next(self._ids)}"
        made = make_action(server, request_id, action, message=message, events=events)
        self.region.actions.setdefault(server["id"], []).insert(0, made)


class OpenStackState:
    """All regions, and the credentials that lead to projects."""

    def __init__(self, *, unix_time: Callable[[], float], regions: Sequence[str], first_id: int = 1) -> None:
        self.regions = {name: SimRegion() for name in regions}
        self.project_names: dict[str, str] = {}
        self.passwords: dict[tuple[str, str], str] = {}  # (user, password) -> project
        self.application_credentials: dict[tuple[str, str], str] = {}  # (id, secret) -> project
        self.admins: set[str] = set()  # names of users
        self.tokens: dict[str, SimToken] = {}
        self.token_seconds = 3600.0
        self.max_microversion: Microversion = (2, 96)
        self.max_limit = 1000  # servers of a page
        self.unix_time = unix_time
        # In the order of their creation; the end has many digits, as in a real id and not in a placeholder.
        self._ids = (
            str(uuid.UUID(int=number << 64 | 0xD521F0E6A5C7B11, version=4))
            for number in itertools.count(first_id)
        )

    def add_project(self, name: str, region: str = "RegionOne") -> SimProject:
        """Create a project with a user of its name, whose password is `<name>-secret`."""
        project = next(self._ids).replace("-", "")
        self.project_names[project] = name
        self.passwords[name, f"{name}-secret"] = project
        self.application_credentials[f"{name}-id", f"{name}-secret"] = project
        return self.enter_region(project, region)

    def enter_region(self, project: str, region: str) -> SimProject:
        """Return the project in another region."""
        return SimProject(project, self.regions[region], self._ids)

    def issue_token(self, project: str, *, is_admin: bool) -> str:
        """Return a new token."""
        token = f"gAAAAA{next(self._ids)}"
        self.tokens[token] = SimToken(project, is_admin, self.unix_time())
        return token

    def find_token(self, token: str) -> SimToken | None:
        """Return what the token may do, None if it is unknown or has expired."""
        found = self.tokens.get(token)
        is_valid = found is not None and self.unix_time() < found.issued_at + self.token_seconds
        return found if is_valid else None
