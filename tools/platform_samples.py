"""A joining node of each platform with the facts of its machine: `make render-samples`."""

from __future__ import annotations

import ipaddress
import json
import sys
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from libs.common.contract.machine import (
    AddressStatus,
    Inventory,
    MachineFacts,
    PlatformMetadata,
    Processors,
    SystemInformation,
)
from libs.common.contract.node import Node, trim_node
from libs.common.contract.platforms import PLATFORMS
from libs.testbed.kubelet_node import SimKubelet, build_registered_node
from libs.testbed.machine_facts import SimMachineFacts, make_machine

_JOINED_AT: Final = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
_SCOPES: Final = {"global": 0, "host": 254}
_TAGS: Final = {"team": "web"}  # on platforms that report tags
_SCHEMATIC: Final = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d642d1ba"  # without extensions
# Manufacturer and product name in SMBIOS. Many product names are invalid label values.
_SMBIOS: Final = {
    "akamai": ("Akamai", "Compute Instance"),
    "alibabacloud": ("Alibaba Cloud", "Alibaba Cloud ECS"),
    "aws": ("Amazon EC2", "m5.large"),
    "azure": ("Microsoft Corporation", "Virtual Machine"),
    "cloudstack": ("Apache Software Foundation", "CloudStack KVM Hypervisor"),
    "digital-ocean": ("DigitalOcean", "Droplet"),
    "equinixMetal": ("Dell Inc.", "PowerEdge R6515"),
    "exoscale": ("Exoscale", "Exoscale Compute Platform"),
    "gcp": ("Google", "Google Compute Engine"),
    "hcloud": ("Hetzner", "vServer"),
    "metal": ("Dell Inc.", "PowerEdge R650"),
    "nocloud": ("QEMU", "Standard PC (i440FX + PIIX, 1996)"),
    "openstack": ("OpenStack Foundation", "OpenStack Nova"),
    "scaleway": ("Scaleway", "SCW-DEV1-M"),
    "upcloud": ("UpCloud", "Server"),
    "vmware": ("VMware, Inc.", "VMware7,1"),
    "vultr": ("Vultr", "VC2"),
}
_QEMU: Final = ("QEMU", "Standard PC (Q35 + ICH9, 2009)")


def render_samples() -> str:
    """Return the content of the committed samples."""
    numbers = {platform: number for number, platform in enumerate(PLATFORMS, start=1)}
    nodes = [_make_sample(platform, numbers[platform]) for platform in sorted(PLATFORMS)]
    file = {"comment": "Written by `make render-samples`. Do not edit.", "nodes": nodes}
    return json.dumps(file, indent=1, ensure_ascii=False) + "\n"


def _make_sample(platform: str, number: int) -> dict[str, Any]:
    machine = make_machine(
        f"{platform.lower()}-1",
        f"10.0.0.{number}",
        platform=platform,
        external_ips=(f"198.51.100.{number}",),
        spot=platform == "aws",
        tags=_TAGS if PLATFORMS[platform].has_tags else None,
    )
    document = build_registered_node(SimKubelet.of_machine(machine), _JOINED_AT)
    document["metadata"] |= {
        "uid": f"00000000-0000-4000-8000-{number:012d}",
        "resourceVersion": str(1000 + number),
        "creationTimestamp": document["status"]["conditions"][0]["lastTransitionTime"],
    }
    node = trim_node(msgspec.convert(document, Node))
    return {"node": msgspec.to_builtins(node), "facts": msgspec.to_builtins(_make_facts(machine, platform))}


def _make_facts(machine: SimMachineFacts, platform: str) -> MachineFacts:
    assert machine.platform is not None
    return MachineFacts(
        platform=msgspec.convert(msgspec.to_builtins(machine.platform), PlatformMetadata),
        system=_make_system_information(machine, platform),
        addresses=tuple(
            AddressStatus(
                address=_prefix(each.address), link=each.link, scope=_SCOPES[each.scope], flags=each.flags
            )
            for each in machine.addresses
        ),
        node_name=machine.name,
        cluster_name="sample",
        queried_at=_JOINED_AT,
        node_ip=machine.reachable_at[0],
        inventory=_make_inventory(machine, in_container=platform == "container"),
    )


def _make_system_information(machine: SimMachineFacts, platform: str) -> SystemInformation | None:
    if machine.system_information is None:
        return None
    manufacturer, product_name = _SMBIOS.get(platform, _QEMU)
    return SystemInformation(
        uuid=machine.system_information.uuid, manufacturer=manufacturer, product_name=product_name
    )


def _make_inventory(machine: SimMachineFacts, *, in_container: bool) -> Inventory:
    found = Processors(manufacturer="GenuineIntel", model="Intel(R) Xeon(R)", sockets=1, cores=2, threads=4)
    return Inventory(
        talos_version=machine.talos_version,
        machine_type="worker",
        extensions={} if in_container else {"schematic": _SCHEMATIC},
        processors=Processors() if in_container else found,
        memory_mib=0 if in_container else 8192,
    )


def _prefix(text: str) -> str:
    return ipaddress.ip_interface(text).with_prefixlen


if __name__ == "__main__":
    sys.stdout.write(render_samples())
