"""The joining machines: several platforms, each machine with its own name and address. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from libs.common.contract.node import CONTROL_PLANE_LABEL, FIELD_OWNERSHIP_DIGEST_LABEL
from libs.testbed.kubelet_node import SimKubelet
from libs.testbed.machine_facts import make_mixed_fleet
from libs.testbed.machine_fleet import SimMachineFacts

_OUR_TAINTS: Final = "node.cloudprovider.kubernetes.io/"


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


def format_node(node: Mapping[str, Any]) -> list[str]:
    """Return one line per field that a cloud controller manager writes, from a Node of the API server."""
    metadata, spec, status = node["metadata"], node["spec"], node["status"]
    taints = [taint for taint in spec.get("taints", []) if taint["key"].startswith(_OUR_TAINTS)]
    return [
        *(f"providerID {spec[key]}" for key in ("providerID",) if key in spec),
        *(f"address    {each['type']} {each['address']}" for each in status.get("addresses", [])),
        *(
            f"label      {key}={value}"
            for key, value in sorted(metadata.get("labels", {}).items())
            # an internal digest, and the label that Talos itself writes
            if key not in (FIELD_OWNERSHIP_DIGEST_LABEL, CONTROL_PLANE_LABEL)
        ),
        *(f"taint      {taint['key']}:{taint['effect']}" for taint in taints),
    ]


def diff_node_lines(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of a Node with "+", "-" or " " (unchanged), without unchanged labels."""
    old, new = format_node(before), format_node(after)
    gone = [("-", line) for line in old if line not in new]
    return [
        ("+" if line not in old else " ", line) for line in new if not _is_unchanged_label(line, old)
    ] + gone


def _is_unchanged_label(line: str, old: list[str]) -> bool:
    return line.startswith("label ") and line in old
