"""One project of the simulated cloud: its objects, and the rate limit that its tokens share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from libs.testbed.clouds.hcloud.objects import (
    Document,
    make_firewall,
    make_image,
    make_network,
    make_server,
    make_ssh_key,
    make_volume,
)

# path of the list: the key of one object
SINGULARS: Final = {
    "servers": "server",
    "networks": "network",
    "ssh_keys": "ssh_key",
    "firewalls": "firewall",
    "volumes": "volume",
    "images": "image",
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


class SimProject:
    """One project. Ids are unique in the whole cloud."""

    def __init__(self, ids: Iterator[int], bucket: RateBucket) -> None:
        self.tables: dict[str, dict[int, Document]] = {kind: {} for kind in SINGULARS}
        self.tables["images"][SYSTEM_IMAGE["id"]] = SYSTEM_IMAGE
        self.bucket = bucket
        self._ids = ids

    def add_server(self, name: str, **details: Any) -> int:
        """Create a server with the details of `make_server`; return its id."""
        return self._put("servers", make_server(next(self._ids), name, **details))

    def add_servers(self, count: int, prefix: str = "server") -> list[int]:
        """Create many servers; return their ids."""
        return [self.add_server(f"{prefix}-{number}") for number in range(count)]

    def add_network(self, name: str = "net") -> int:
        """Create a network; return its id."""
        return self._put("networks", make_network(next(self._ids), name))

    def add_ssh_key(self, name: str = "key") -> int:
        """Create an SSH key; return its id."""
        return self._put("ssh_keys", make_ssh_key(next(self._ids), name))

    def add_firewall(self, name: str = "wall") -> int:
        """Create a firewall; return its id."""
        return self._put("firewalls", make_firewall(next(self._ids), name))

    def add_volume(self, name: str = "data") -> int:
        """Create a volume; return its id."""
        return self._put("volumes", make_volume(next(self._ids), name))

    def add_image(self, description: str = "before", *, image_type: str = "snapshot") -> int:
        """Create a snapshot or a backup; return its id."""
        return self._put("images", make_image(next(self._ids), description, image_type=image_type))

    def update_server(self, server_id: int, **fields: Any) -> None:
        """Change fields, such as `name` or `status`."""
        self.tables["servers"][server_id] |= fields

    def remove(self, kind: str, object_id: int) -> Document:
        """Delete the object and return it; `kind` is the path of its list."""
        return self.tables[kind].pop(object_id)

    def move_server(self, server_id: int, target: SimProject) -> None:
        """Transfer a server to another project; it keeps its id."""
        target._put("servers", self.remove("servers", server_id))

    def _put(self, kind: str, document: Document) -> int:
        number: int = document["id"]
        self.tables[kind][number] = document
        return number
