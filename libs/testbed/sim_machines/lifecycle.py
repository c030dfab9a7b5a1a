"""Specs of MachineStatus and of the discovered Members."""

from __future__ import annotations

import ipaddress

from libs.testbed.machine_facts import Member
from libs.testbed.sim_machines.protobuf_wire import Field

STATUS_OWNER = "runtime.MachineStatusController"
MEMBER_OWNER = "cluster.MemberController"
_STAGES = {
    "unknown": 0,
    "booting": 1,
    "installing": 2,
    "maintenance": 3,
    "running": 4,
    "rebooting": 5,
    "shutting down": 6,
    "resetting": 7,
    "upgrading": 8,
}
_CONTROL_PLANE, _WORKER = 2, 3


def build_status_spec(stage: str) -> dict[int, Field]:
    """Return the MachineStatusSpec; a running machine is ready. Raises ValueError for an unknown stage."""
    if stage not in _STAGES:
        raise ValueError(f"{stage} does not belong to MachineStage values")
    return {1: _STAGES[stage], 2: {1: True} if stage == "running" else {}}


def build_member_spec(member: Member) -> dict[int, Field]:
    """Return the MemberSpec. Raises ValueError for a missing name or an invalid address."""
    if not member.name:
        raise ValueError("a member needs a name")
    return {
        1: member.node_id,
        2: [{1: ipaddress.ip_address(address).packed} for address in member.addresses],
        3: member.hostname,
        4: _CONTROL_PLANE if member.control_plane else _WORKER,
        5: member.operating_system,
    }
