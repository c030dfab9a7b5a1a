"""One project of the simulated cloud: its objects, and the rate limit that its tokens share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from libs.testbed.clouds.hcloud.actions import Effect, SimActions, format_time
from libs.testbed.clouds.hcloud.balancers import create_balancer, render_balancer
from libs.testbed.clouds.hcloud.errors import Refusal
from libs.testbed.clouds.hcloud.networks import render_network
from libs.testbed.clouds.hcloud.objects import (
    LOAD_BALANCER_TYPES,
    LOCATIONS,
    Document,
    make_certificate,
    make_firewall,
    make_image,
    make_load_balancer_type,
    make_location,
    make_network,
    make_server,
    make_ssh_key,
    make_volume,
)
from libs.testbed.clouds.hcloud.selectors import are_labels

# path of the list: the key of one object
SINGULARS: Final = {
    "servers": "server",
    "networks": "network",
    "ssh_keys": "ssh_key",
    "firewalls": "firewall",
    "volumes": "volume",
    "images": "image",
    "load_balancers": "load_balancer",
    "certificates": "certificate",
    "load_balancer_types": "load_balancer_type",
    "locations": "location",
}
SYSTEM_IMAGE: Final = make_image(7, "debian-13", image_type="system")  # in every project
HOUR_SECONDS: Final = 3600.0


class RateBucket:
    """Requests that remain; they return evenly, all of them within an hour."""

    def __init__(self, limit: int, now: Callable[[], float]) -> None:
        """`now` is monotonic, in seconds."""
        self.limit = limit
        self._now = now
        self._level = float(limit)
        self._updated_at = now()

    @property
    def remaining(self) -> int:
        """The whole requests that remain."""
        now = self._now()
        returned = (now - self._updated_at) * self.limit / HOUR_SECONDS
        self._level = min(self.limit, self._level + returned)
        self._updated_at = now
        return int(self._level)

    @property
    def seconds_until_full(self) -> float:
        """The time until all requests remain again, if none is sent."""
        return (self.limit - self.remaining) * HOUR_SECONDS / self.limit

    def take(self, requests: int = 1) -> bool:
        """Take requests, of any client; return False if fewer remain."""
        if self.remaining < requests:
            return False
        self._level -= requests
        return True


def _render_certificate(project: SimProject, certificate: Document) -> Document:
    users = [
        {"id": each["id"], "type": "load_balancer"}
        for each in project.tables["load_balancers"].values()
        if any(certificate["id"] in one.get("http", {}).get("certificates", ()) for one in each["services"])
    ]
    return certificate | {"used_by": users}


_RENDER: Final[Mapping[str, Callable[[SimProject, Document], Document]]] = {
    "load_balancers": render_balancer,
    "networks": render_network,
    "certificates": _render_certificate,
}


class SimChange(msgspec.Struct, frozen=True):
    """A change of an object: "create", "update", "delete", or the command of an action that began."""

    at: float  # by the cloud's clock
    command: str
    kind: str  # the path of its list
    object_id: int
    labels: Mapping[str, str]


class SimProject:
    """One project. Ids are unique in the whole cloud."""

    def __init__(
        self,
        ids: Iterator[int],
        bucket: RateBucket,
        *,
        now: Callable[[], float],
        unix_time: Callable[[], float],
    ) -> None:
        """`now` is monotonic, in seconds."""
        self.tables: dict[str, dict[int, Document]] = {kind: {} for kind in SINGULARS}
        self.tables["images"][SYSTEM_IMAGE["id"]] = SYSTEM_IMAGE
        for kind, made in (
            ("load_balancer_types", [make_load_balancer_type(name) for name in LOAD_BALANCER_TYPES]),
            ("locations", [make_location(name) for name in LOCATIONS]),
        ):
            self.tables[kind] = {each["id"]: each for each in made}
        self.bucket = bucket
        self.actions = SimActions(ids, now, unix_time)
        self.journal: list[SimChange] = []
        self.quotas: dict[str, int] = {}  # how many objects it may have, by the path of their list
        self.max_routes = 100  # of one network
        self.busy_code = "conflict"  # of a change while another one of the object runs; or "locked"
        self.dedicated_addresses: set[str] = set()  # of machines that are no servers of this cloud
        self._ids, self._now, self._unix_time = ids, now, unix_time

    def add_server(self, name: str, **details: Any) -> int:
        """Create a server with the details of `make_server`; return its id."""
        return self.add("servers", make_server(next(self._ids), name, **details))

    def add_servers(self, count: int, prefix: str = "server") -> list[int]:
        """Create many servers; return their ids."""
        return [self.add_server(f"{prefix}-{number}") for number in range(count)]

    def add_network(self, name: str = "net") -> int:
        """Create a network; return its id."""
        return self.add("networks", make_network(next(self._ids), name))

    def add_ssh_key(self, name: str = "key") -> int:
        """Create an SSH key; return its id."""
        return self.add("ssh_keys", make_ssh_key(next(self._ids), name))

    def add_firewall(self, name: str = "wall") -> int:
        """Create a firewall; return its id."""
        return self.add("firewalls", make_firewall(next(self._ids), name))

    def add_volume(self, name: str = "data") -> int:
        """Create a volume; return its id."""
        return self.add("volumes", make_volume(next(self._ids), name))

    def add_image(self, description: str = "before", *, image_type: str = "snapshot") -> int:
        """Create a snapshot or a backup; return its id."""
        return self.add("images", make_image(next(self._ids), description, image_type=image_type))

    def update_server(self, server_id: int, **fields: Any) -> None:
        """Change fields, such as `name` or `status`."""
        self.tables["servers"][server_id] |= fields

    def add_certificate(self, name: str = "web") -> int:
        """Create an uploaded certificate; return its id."""
        certificate = make_certificate(
            next(self._ids),
            name,
            certificate_type="uploaded",
            domain_names=[name],
            created=self.format_now(),
        )
        return self.add("certificates", certificate)

    def add_balancer(self, name: str, **body: Any) -> int:
        """Create a load balancer as a request with this body does; return its id."""
        body = {"name": name, "load_balancer_type": "lb11", "location": "fsn1"} | body
        return self.add("load_balancers", create_balancer(self, body))

    def remove(self, kind: str, object_id: int) -> Document:
        """Delete the object and return it; `kind` is the path of its list. A server is no target then."""
        document = self.tables[kind].pop(object_id)
        if kind == "servers":
            for balancer in self.tables["load_balancers"].values():
                targets = [each for each in balancer["targets"] if each.get("server") != {"id": object_id}]
                balancer["targets"] = targets
        self._record("delete", kind, document)
        return document

    def move_server(self, server_id: int, target: SimProject) -> None:
        """Transfer a server to another project; it keeps its id."""
        target.add("servers", self.remove("servers", server_id))

    def add(self, kind: str, document: Document) -> int:
        """Put an object into its table; return its id."""
        number: int = document["id"]
        self.tables[kind][number] = document
        self._record("create", kind, document)
        return number

    # ---- for requests

    def next_id(self) -> int:
        """Return an id that no object has."""
        return next(self._ids)

    def format_now(self) -> str:
        """Return the time as the API writes it."""
        return format_time(self._unix_time())

    def find(self, kind: str, object_id: int) -> Document:
        """Return the object. Raises Refusal if there is none."""
        found = self.tables[kind].get(object_id)
        if found is None:
            raise Refusal("not_found", f"no such {SINGULARS[kind]}")
        return found

    def render(self, kind: str, document: Document) -> Document:
        """Return the object as it is sent, with what follows from other objects."""
        return _RENDER[kind](self, document) if kind in _RENDER else document

    def check_new(self, kind: str, name: str, labels: Mapping[str, str]) -> None:
        """Raise Refusal if no object with this name can be created."""
        if len(self.tables[kind]) >= self.quotas.get(kind, 1 << 30):
            raise Refusal("resource_limit_exceeded", "limit of the project")
        self.check_fields(kind, {"name": name, "labels": labels})

    def check_fields(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Raise Refusal if an object has the name, or the labels are none."""
        if any(each["name"] == fields.get("name") for each in self.tables[kind].values()):
            raise Refusal("uniqueness_error", "the name is used", "name")
        if not are_labels(fields.get("labels", {})):
            raise Refusal("invalid_input", "not a label", "labels")

    def check_free(self, kind: str, document: Document) -> None:
        """Raise Refusal while an action of the object runs."""
        if self.actions.is_running(SINGULARS[kind], document["id"]):
            raise Refusal(self.busy_code, f"{SINGULARS[kind]} has changed during the request")

    def start_action(
        self,
        command: str,
        kind: str,
        document: Document,
        effect: Effect,
        *,
        network: Document | None = None,
    ) -> Document:
        """Start an action of the object, and of a network that it changes too; return the action's document.

        Raises Refusal while another action of the network runs.
        """
        resources = [{"id": document["id"], "type": SINGULARS[kind]}]
        if network is not None:
            self.check_free("networks", network)
            resources.append({"id": network["id"], "type": "network"})
        if not command.startswith(("create_", "delete_load_balancer")):  # recorded as the objects come and go
            self._record(command, kind, document)
        return self.actions.start(command, resources, effect)

    def update(self, kind: str, document: Document, fields: Mapping[str, Any]) -> None:
        """Change name or labels. Raises Refusal if they cannot be used."""
        self.check_fields(kind, {name: value for name, value in fields.items() if value != document[name]})
        document |= fields
        self._record("update", kind, document)

    def list_private_addresses(self, network_id: int) -> set[str]:
        """Return the addresses that are used in the network."""
        users = [*self.tables["servers"].values(), *self.tables["load_balancers"].values()]
        places = [place for each in users for place in each["private_net"]]
        return {place["ip"] for place in places if place["network"] == network_id}

    def list_public_addresses(self) -> set[str]:
        """Return the IPv4 addresses of all servers and load balancers."""
        users = [*self.tables["servers"].values(), *self.tables["load_balancers"].values()]
        return {each["public_net"]["ipv4"]["ip"] for each in users if each["public_net"]["ipv4"]}

    def _record(self, command: str, kind: str, document: Document) -> None:
        labels = dict(document.get("labels", {}))
        self.journal.append(SimChange(self._now(), command, kind, document["id"], labels))
