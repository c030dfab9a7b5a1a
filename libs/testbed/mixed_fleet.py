"""Fleets of numbered machines on several platforms. Pure."""

from typing import Final

from libs.testbed.machine_facts import SimMachineFacts, make_machine
from libs.testbed.platform_examples import MIXED_FLEET

MAX_NODES: Final = 20000  # the address ranges below have room for these


def make_numbered_machine(name: str, number: int, platform: str, cluster_name: str) -> SimMachineFacts:
    """Make a dual-stack machine with an external address; each number has its own addresses."""
    high, low = divmod(number, 250)
    return make_machine(
        name,
        f"10.{64 + high // 250}.{high % 250}.{low + 1}",
        ip6=f"2001:db8:64::{number + 1:x}",
        platform=platform,
        external_ips=(f"198.51.{100 + high}.{low + 1}",),
        cluster_name=cluster_name,
    )


def make_mixed_fleet(count: int, cluster_name: str, *, digits: int) -> list[SimMachineFacts]:
    """Make machines such as aws-001 and metal-002 on alternating platforms; larger fleets start the same."""
    platforms = [MIXED_FLEET[number % len(MIXED_FLEET)] for number in range(count)]
    return [
        make_numbered_machine(f"{platform}-{number:0{digits}}", number, platform, cluster_name)
        for number, platform in enumerate(platforms, 1)
    ]
