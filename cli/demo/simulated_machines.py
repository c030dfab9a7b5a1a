"""The joining machines: several platforms, each machine with its own name and address. Pure."""

import msgspec

from libs.common.contract.node import CONTROL_PLANE_LABEL
from libs.testbed.kubelet_node import SimKubelet
from libs.testbed.machine_facts import make_mixed_fleet
from libs.testbed.machine_fleet import SimMachineFacts


def make_machines(count: int) -> list[SimMachineFacts]:
    """Return `count` dual-stack machines; platforms take turns.

    One or three of them are control planes: the first of bare metal, or the only one.
    """
    machines = make_mixed_fleet(count, "demo", digits=3)
    metal = [each.name for each in machines if each.name.startswith("metal-")] or [machines[0].name]
    control_planes = metal[: 3 if len(metal) >= 3 else 1]
    return [
        msgspec.structs.replace(each, control_plane=True) if each.name in control_planes else each
        for each in machines
    ]


def make_kubelet(machine: SimMachineFacts) -> SimKubelet:
    """Return the kubelet of a machine; on a control plane it registers with the taint, as on Talos."""
    taints = ({"key": CONTROL_PLANE_LABEL, "effect": "NoSchedule"},) if machine.control_plane else ()
    return SimKubelet.of_machine(machine, taints=taints)
