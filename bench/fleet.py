"""Machines of several platforms that join, with different names per batch. Pure."""

from typing import Final

from libs.testbed.kubelet_node import SimKubelet
from libs.testbed.machine_fleet import Address, SimMachineFacts
from libs.testbed.mixed_fleet import make_numbered_machine
from libs.testbed.platform_examples import MIXED_FLEET

EXTERNAL: Final = "external"  # Talos's link for addresses that only the cloud knows


def make_fleet(prefix: str, count: int, platforms: tuple[str, ...] = MIXED_FLEET) -> list[SimMachineFacts]:
    """Make `count` dual-stack machines with an external address, on alternating platforms."""
    return [
        make_numbered_machine(f"{prefix}-{number:05}", number, platforms[number % len(platforms)], "bench")
        for number in range(count)
    ]


def move_external_address(machine: SimMachineFacts, number: int) -> tuple[tuple[Address, ...], str]:
    """The machine's addresses with another external one, and that one."""
    address = f"203.0.{113 + number // 250}.{number % 250 + 1}"
    others = tuple(each for each in machine.addresses if each.link != EXTERNAL)
    return (*others, Address(address=f"{address}/32", link=EXTERNAL, link_index=0, flags=0)), address


def make_kubelets(machines: list[SimMachineFacts]) -> list[SimKubelet]:
    """Make the kubelet of each machine."""
    return [SimKubelet.of_machine(machine) for machine in machines]
