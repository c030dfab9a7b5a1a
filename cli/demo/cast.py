"""Who joins: machines of several platforms, each with a name and an address of its own. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from libs.testbed.machines import Machine, a_machine

# What an ordinary mixed fleet looks like; every platform gives its node another kind of providerID.
PLATFORMS: Final = ("aws", "metal", "hcloud", "nocloud", "gcp", "azure", "openstack", "vultr")
MOST: Final = 5000  # addresses 10.64.0.0/16 and 2001:db8:64::/64 hold more, this machine does not


def cast(count: int) -> list[Machine]:
    """`count` dual-stack machines, platforms in turn."""
    return [_machine(number) for number in range(1, count + 1)]


def _machine(number: int) -> Machine:
    platform = PLATFORMS[(number - 1) % len(PLATFORMS)]
    return a_machine(
        f"{platform}-{number:03}",
        f"10.64.{number // 250}.{number % 250 + 1}",
        ip6=f"2001:db8:64::{number:x}",
        platform=platform,
        external_ips=(f"198.51.{100 + number // 250}.{number % 250 + 1}",),
        cluster_name="demo",
    )


def readable(node: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a Node, as the API server encodes it, that a cloud controller manager is about."""
    metadata, spec, status = node["metadata"], node["spec"], node["status"]
    return {
        "labels": dict(sorted(metadata.get("labels", {}).items())),
        "spec": {key: spec[key] for key in ("providerID", "taints") if key in spec},
        "addresses": [f"{address['type']} {address['address']}" for address in status.get("addresses", [])],
    }
