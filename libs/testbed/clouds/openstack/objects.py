"""Documents of Nova and Neutron, with the fields of their own samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Document = dict[str, Any]
Microversion = tuple[int, int]

# Fields of a server that came with a microversion.
_SINCE: Final[Mapping[str, Microversion]] = {
    "locked": (2, 9),
    "description": (2, 19),
    "tags": (2, 26),
    "trusted_image_certificates": (2, 63),
}
_FLAVOR_EMBEDDED: Final = (2, 47)
_OFF: Final = {"SHUTOFF", "SHELVED", "SHELVED_OFFLOADED", "SUSPENDED", "SOFT_DELETED"}


def make_server(
    server_id: str,
    name: str,
    *,
    project: str,
    status: str = "ACTIVE",
    zone: str = "nova",
    flavor: str = "m1.small",
    addresses: Mapping[str, Sequence[tuple[str, str]]] | None = None,
) -> Document:
    """Return a server; `addresses` has pairs of an address and its type per network's name."""
    return {
        "id": server_id,
        "name": name,
        "status": status,
        "tenant_id": project,
        "user_id": "user",
        "metadata": {},
        "hostId": "2091634baaccdc4c5a1d57069c833e402921df696b7f970791b12ec6",
        "image": {"id": "70a599e0-31e7-49b7-b260-868f441e862b", "links": []},
        "flavor": {
            "vcpus": 1,
            "ram": 2048,
            "disk": 20,
            "ephemeral": 0,
            "swap": 0,
            "original_name": flavor,
            "extra_specs": {},
        },
        "created": "2026-01-02T03:04:05Z",
        "updated": "2026-01-02T03:05:00Z",
        "addresses": {
            network: [
                {
                    "OS-EXT-IPS-MAC:mac_addr": "fa:16:3e:00:00:01",
                    "OS-EXT-IPS:type": kind,
                    "addr": address,
                    "version": 6 if ":" in address else 4,
                }
                for address, kind in listed
            ]
            for network, listed in (addresses or {}).items()
        },
        "accessIPv4": "",
        "accessIPv6": "",
        "links": [],
        "OS-DCF:diskConfig": "AUTO",
        "progress": 0,
        "OS-EXT-AZ:availability_zone": zone,
        "config_drive": "",
        "key_name": None,
        "OS-SRV-USG:launched_at": "2026-01-02T03:05:00.000000",
        "OS-SRV-USG:terminated_at": None,
        "OS-EXT-STS:task_state": None,
        "OS-EXT-STS:vm_state": "stopped" if status in _OFF else "active",
        "OS-EXT-STS:power_state": 4 if status in _OFF else 1,
        "os-extended-volumes:volumes_attached": [],
        "security_groups": [{"name": "default"}],
        "locked": False,
        "description": None,
        "tags": [],
        "trusted_image_certificates": None,
    }


def render_server(server: Document, microversion: Microversion) -> Document:
    """Return the server as this microversion shows it."""
    shown = {name: value for name, value in server.items() if microversion >= _SINCE.get(name, (2, 1))}
    if microversion < _FLAVOR_EMBEDDED:
        shown["flavor"] = {"id": "2", "links": []}
    return shown


def make_action(
    server: Document, request_id: str, action: str, *, message: str | None = None, events: Sequence[Document]
) -> Document:
    """Return an instance action with its events."""
    return {
        "action": action,
        "instance_uuid": server["id"],
        "request_id": request_id,
        "user_id": "user",
        "project_id": server["tenant_id"],
        "start_time": "2026-01-03T03:04:05.000000",
        "updated_at": "2026-01-03T03:04:15.000000",
        "message": message,
        "events": list(events),
    }


def make_event(event: str, result: str | None = "Success") -> Document:
    """Return an event of an action; without a result it has not ended."""
    return {
        "event": event,
        "start_time": "2026-01-03T03:04:06.000000",
        "finish_time": None if result is None else "2026-01-03T03:04:14.000000",
        "result": result,
        "hostId": "2091634baaccdc4c5a1d57069c833e402921df696b7f970791b12ec6",
    }


def make_network(network_id: str, name: str, *, project: str, shared: bool = False) -> Document:
    """Return a network."""
    return {
        "id": network_id,
        "name": name,
        "project_id": project,
        "tenant_id": project,
        "admin_state_up": True,
        "status": "ACTIVE",
        "shared": shared,
        "router:external": False,
        "mtu": 1450,
        "subnets": [],
        "port_security_enabled": True,
        "availability_zone_hints": [],
        "availability_zones": ["nova"],
        "ipv4_address_scope": None,
        "ipv6_address_scope": None,
        "description": "",
        "qos_policy_id": None,
        "is_default": False,
        "tags": [],
        "created_at": "2026-01-02T03:04:05Z",
        "updated_at": "2026-01-02T03:04:05Z",
        "revision_number": 1,
    }


def make_link(url: str, rel: str = "self") -> dict[str, Any]:
    """Return a link as documents have them."""
    return {"rel": rel, "href": url}
