"""The answer of Talos's Version call, which proves a machine reachable."""

from __future__ import annotations

from libs.testbed.machine_facts import Machine
from libs.testbed.sim_machines.wire import Field, encode


def version_response(machine: Machine) -> bytes:
    """machine.VersionResponse with one message. Build facts other than the tag are left out."""
    name = machine.platform.platform if machine.platform else ""
    platform: dict[int, Field] = {1: name, 2: _mode(name)}
    answer: dict[int, Field] = {
        2: {1: machine.talos_version, 5: "linux", 6: "amd64"},
        3: platform,
        4: {1: True},  # role-based access is on
    }
    return encode({1: [answer]})


def _mode(platform: str) -> str:
    if platform in {"metal", "container"}:
        return platform
    return "cloud" if platform else "metal"
