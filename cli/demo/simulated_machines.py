"""The joining machines: several platforms, each machine with its own name and address. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from libs.common.contract.node import FIELD_OWNERSHIP_DIGEST_LABEL
from libs.testbed.machine_fleet import SimMachineFacts
from libs.testbed.mixed_fleet import make_mixed_fleet

_OUR_TAINTS: Final = "node.cloudprovider.kubernetes.io/"


def make_machines(count: int) -> list[SimMachineFacts]:
    """Return `count` dual-stack machines; platforms take turns."""
    return make_mixed_fleet(count, "demo", digits=3)


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
            if key != FIELD_OWNERSHIP_DIGEST_LABEL  # an internal digest
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
