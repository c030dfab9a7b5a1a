"""The joining machines: several platforms, each machine with its own name and address. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from libs.common.contract.node import FIELD_OWNERSHIP_DIGEST_LABEL
from libs.testbed.machine_fleet import SimMachineFacts, make_machine
from libs.testbed.platform_examples import MIXED_FLEET

_OUR_TAINTS: Final = "node.cloudprovider.kubernetes.io/"


def make_machines(count: int) -> list[SimMachineFacts]:
    """Return `count` dual-stack machines; platforms take turns."""
    return [_make_machine(number) for number in range(1, count + 1)]


def _make_machine(number: int) -> SimMachineFacts:
    platform = MIXED_FLEET[(number - 1) % len(MIXED_FLEET)]
    return make_machine(
        f"{platform}-{number:03}",
        f"10.64.{number // 250}.{number % 250 + 1}",
        ip6=f"2001:db8:64::{number:x}",
        platform=platform,
        external_ips=(f"198.51.{100 + number // 250}.{number % 250 + 1}",),
        cluster_name="demo",
    )


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
