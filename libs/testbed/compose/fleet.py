"""The machines of the simulated cluster: names, platforms, addresses. Pure."""

from typing import Final

from libs.testbed.machine_fleet import SimMachineFacts, make_machine
from libs.testbed.platform_examples import MIXED_FLEET

MAX_NODES: Final = 5000


def make_fleet(count: int) -> list[SimMachineFacts]:
    """Make `count` dual-stack machines on alternating platforms; a larger fleet starts with the same ones."""
    return [_make_machine(number) for number in range(1, count + 1)]


def _make_machine(number: int) -> SimMachineFacts:
    platform = MIXED_FLEET[(number - 1) % len(MIXED_FLEET)]
    high, low = divmod(number, 250)
    return make_machine(
        f"{platform}-{number:04}",
        f"10.64.{high}.{low + 1}",
        ip6=f"2001:db8:64::{number:x}",
        platform=platform,
        external_ips=(f"198.51.{100 + high}.{low + 1}",),
        cluster_name="compose",
    )
