"""Objects of the API as JSON documents, with all fields that hcloud-go's schema has."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any, Final

Document = dict[str, Any]

_CREATED: Final = "2026-01-02T03:04:05Z"
_PRICE: Final = {"net": "1.0000", "gross": "1.1900"}
_FIRST_IPV4: Final = ipaddress.IPv4Address("198.18.0.0")  # for benchmarks: RFC 2544
_FIRST_IPV6: Final = ipaddress.IPv6Address("2001:db8:18::")
LOCATIONS: Final = {
    "fsn1": (1, "eu-central", "DE"),
    "nbg1": (2, "eu-central", "DE"),
    "hel1": (3, "eu-central", "FI"),
    "ash": (4, "us-east", "US"),
}
# id, then the limits of services, targets, connections and certificates
LOAD_BALANCER_TYPES: Final = {
    "lb11": (1, 5, 25, 10_000, 10),
    "lb21": (2, 15, 75, 20_000, 25),
    "lb31": (3, 30, 150, 40_000, 50),
}


def make_location(name: str) -> Document:
    """Return a location."""
    number, zone, country = LOCATIONS[name]
    return {
        "id": number,
        "name": name,
        "description": f"{name} park",
        "country": country,
        "city": name,
        "latitude": 50.5,
        "longitude": 12.25,
        "network_zone": zone,
    }


def _make_price() -> Document:
    return {
        "location": "fsn1",
        "price_hourly": _PRICE,
        "price_monthly": _PRICE,
        "included_traffic": 20 * 2**40,
        "price_per_tb_traffic": _PRICE,
    }


def make_server_type(name: str) -> Document:
    """Return a server type with the prices of one location."""
    location = {"id": 1, "name": "fsn1", "recommended": True, "available": True, "deprecation": None}
    return {
        "id": 22,
        "name": name,
        "description": name.upper(),
        "category": "Shared vCPU",
        "cores": 2,
        "memory": 4.0,
        "disk": 40,
        "storage_type": "local",
        "cpu_type": "shared",
        "architecture": "x86",
        "included_traffic": 0,
        "prices": [_make_price()],
        "deprecated": False,
        "deprecation": None,
        "locations": [location],
    }


def make_server(
    server_id: int,
    name: str,
    *,
    status: str = "running",
    location: str = "fsn1",
    server_type: str = "cx22",
    ipv4: str | None = None,
    ipv6: str | None = None,
    private: Sequence[tuple[int, str]] = (),
) -> Document:
    """Return a server; `ipv6` is its /64 network, `private` pairs of a network's id and an address."""
    v4: Document = {"id": server_id + 1, "ip": ipv4, "blocked": False, "dns_ptr": f"{name}.example"}
    v6: Document = {"id": server_id + 2, "ip": ipv6, "blocked": False, "dns_ptr": []}
    return {
        "id": server_id,
        "name": name,
        "status": status,
        "created": _CREATED,
        "public_net": {
            "ipv4": v4 if ipv4 else None,
            "ipv6": v6 if ipv6 else None,
            "floating_ips": [],
            "firewalls": [],
        },
        "private_net": [
            {"network": network, "ip": ip, "alias_ips": [], "mac_address": "86:00:00:00:00:01"}
            for network, ip in private
        ],
        "server_type": make_server_type(server_type),
        "included_traffic": 20 * 2**40,
        "outgoing_traffic": None,
        "ingoing_traffic": None,
        "backup_window": None,
        "rescue_enabled": False,
        "iso": None,
        "locked": False,
        "location": make_location(location),
        "image": None,
        "protection": {"delete": False, "rebuild": False},
        "labels": {},
        "volumes": [],
        "primary_disk_size": 40,
        "placement_group": None,
        "load_balancers": [],
    }


def make_network(network_id: int, name: str) -> Document:
    """Return a network with one subnet."""
    subnet = {"type": "cloud", "ip_range": "10.0.1.0/24", "network_zone": "eu-central", "gateway": "10.0.0.1"}
    return {
        "id": network_id,
        "name": name,
        "created": _CREATED,
        "ip_range": "10.0.0.0/16",
        "subnets": [subnet],
        "routes": [],
        "servers": [],
        "load_balancers": [],
        "protection": {"delete": False},
        "labels": {},
        "expose_routes_to_vswitch": False,
    }


def make_ssh_key(key_id: int, name: str) -> Document:
    """Return a public key."""
    return {
        "id": key_id,
        "name": name,
        "fingerprint": "b7:2f:30:a0:2f:6c:58:6c:21:04:58:61:ba:06:3b:2f",
        "public_key": "ssh-ed25519 AAAA",
        "labels": {},
        "created": _CREATED,
    }


def make_firewall(firewall_id: int, name: str) -> Document:
    """Return a firewall with one rule."""
    rule = {
        "direction": "in",
        "source_ips": ["0.0.0.0/0"],
        "destination_ips": [],
        "protocol": "tcp",
        "port": "50000",
        "description": None,
    }
    return {
        "id": firewall_id,
        "name": name,
        "labels": {},
        "created": _CREATED,
        "rules": [rule],
        "applied_to": [],
    }


def make_volume(volume_id: int, name: str) -> Document:
    """Return a volume that no server has attached."""
    return {
        "id": volume_id,
        "name": name,
        "server": None,
        "status": "available",
        "location": make_location("fsn1"),
        "size": 10,
        "format": None,
        "protection": {"delete": False},
        "labels": {},
        "linux_device": f"/dev/disk/by-id/scsi-0HC_Volume_{volume_id}",
        "created": _CREATED,
    }


def make_image(image_id: int, description: str, *, image_type: str) -> Document:
    """Return an image of the type system, snapshot or backup; only system images have a name."""
    return {
        "id": image_id,
        "status": "available",
        "type": image_type,
        "name": description if image_type == "system" else None,
        "description": description,
        "image_size": 1.5,
        "disk_size": 10.0,
        "created": _CREATED,
        "created_from": None,
        "bound_to": None,
        "os_flavor": "debian",
        "os_version": "13",
        "architecture": "x86",
        "rapid_deploy": False,
        "protection": {"delete": False},
        "deprecated": None,
        "deprecation": None,
        "deleted": None,
        "labels": {},
    }


def make_load_balancer_type(name: str) -> Document:
    """Return a size of load balancers with its limits."""
    number, services, targets, connections, certificates = LOAD_BALANCER_TYPES[name]
    return {
        "id": number,
        "name": name,
        "description": name.upper(),
        "max_connections": connections,
        "max_services": services,
        "max_targets": targets,
        "max_assigned_certificates": certificates,
        "prices": [_make_price()],
        "deprecated": None,
        "deprecation": None,
    }


def make_load_balancer(
    balancer_id: int, name: str, *, balancer_type: str, location: str, created: str
) -> Document:
    """Return a load balancer without services and targets, with public addresses of its own."""
    return {
        "id": balancer_id,
        "name": name,
        "public_net": {
            "enabled": True,
            "ipv4": make_address(balancer_id + 1, str(_FIRST_IPV4 + balancer_id % 2**17)),
            "ipv6": make_address(balancer_id + 2, str(_FIRST_IPV6 + balancer_id)),
        },
        "private_net": [],
        "location": make_location(location),
        "load_balancer_type": make_load_balancer_type(balancer_type),
        "protection": {"delete": False},
        "labels": {},
        "created": created,
        "services": [],
        "targets": [],
        "algorithm": {"type": "round_robin"},
        "included_traffic": 20 * 2**40,
        "outgoing_traffic": None,
        "ingoing_traffic": None,
    }


def make_address(address_id: int, address: str) -> Document:
    """Return a public address of a load balancer."""
    return {"id": address_id, "ip": address, "blocked": False, "dns_ptr": f"{address_id}.example"}


def make_certificate(
    certificate_id: int, name: str, *, certificate_type: str, domain_names: Sequence[str], created: str
) -> Document:
    """Return a certificate of the type uploaded or managed."""
    is_managed = certificate_type == "managed"
    return {
        "id": certificate_id,
        "name": name,
        "labels": {},
        "type": certificate_type,
        "certificate": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "created": created,
        "not_valid_before": _CREATED,
        "not_valid_after": "2027-01-02T03:04:05Z",
        "domain_names": list(domain_names),
        "fingerprint": "03:c7:55:9b:2a:d1:04:17:09:f6:d0:7f:18:34:63:d4:3e:5f",
        "status": {"issuance": "completed", "renewal": "unavailable"} if is_managed else None,
        "used_by": [],
    }
