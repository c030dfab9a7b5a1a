"""The response to Talos's Version call, which proves that a machine is reachable."""

from __future__ import annotations

from libs.testbed.machine_facts import SimMachineFacts
from libs.testbed.sim_machines.protobuf_wire import Field, encode


def build_version_response(machine: SimMachineFacts) -> bytes:
    """Return a machine.VersionResponse with one message, without build facts other than the tag."""
    name = machine.platform.platform if machine.platform else ""
    platform: dict[int, Field] = {1: name, 2: _get_mode(name)}
    answer: dict[int, Field] = {
        2: {1: machine.talos_version, 5: "linux", 6: "amd64"},
        3: platform,
        4: {1: True},  # role-based access control is enabled
    }
    return encode({1: [answer]})


def _get_mode(platform: str) -> str:
    if platform in {"metal", "container"}:
        return platform
    return "cloud" if platform else "metal"
