"""Machines of several platforms that join, with different names per batch. Pure."""

from typing import Final

import msgspec

from libs.testbed.kubelet_node import SimKubelet
from libs.testbed.machine_fleet import Address, SimMachineFacts
from libs.testbed.mixed_fleet import make_numbered_machine
from libs.testbed.platform_examples import MIXED_FLEET
from libs.testbed.service_processes import SERVICE_NETWORKS

# Networks that no machine of the fleet uses; the reference needs an IPv6 network of a /64 or smaller.
POD_NETWORKS: Final = ("10.128.0.0/9", "fd00:10:128::/64")
EXTERNAL: Final = "external"  # Talos's link for addresses that only the cloud knows


def make_fleet(prefix: str, count: int, platforms: tuple[str, ...] = MIXED_FLEET) -> list[SimMachineFacts]:
    """Make `count` dual-stack machines with an external address, on alternating platforms."""
    return [
        make_numbered_machine(f"{prefix}-{number:05}", number, platforms[number % len(platforms)], "bench")
        for number in range(count)
    ]


def make_control_plane(machine: SimMachineFacts) -> SimMachineFacts:
    """The machine as a control plane, whose networks another controller reads before it allocates."""
    return msgspec.structs.replace(
        machine,
        control_plane=True,
        pod_cidrs=POD_NETWORKS,
        service_cidrs=tuple(SERVICE_NETWORKS.split(",")),
    )


def move_external_address(machine: SimMachineFacts, number: int) -> tuple[tuple[Address, ...], str]:
    """The machine's addresses with another external one, and that one."""
    address = f"203.0.{113 + number // 250}.{number % 250 + 1}"
    others = tuple(each for each in machine.addresses if each.link != EXTERNAL)
    return (*others, Address(address=f"{address}/32", link=EXTERNAL, link_index=0, flags=0)), address


def make_kubelets(machines: list[SimMachineFacts]) -> list[SimKubelet]:
    """Make the kubelet of each machine."""
    return [SimKubelet.of_machine(machine) for machine in machines]
