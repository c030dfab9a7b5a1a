"""`python -m tools.platform_samples`: writes what follows the platform table.

These are the samples of `talos-ccm render`, with a joining node of each platform, and a table of the docs.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from libs.common.contract.machine import (
    AddressStatus,
    Inventory,
    MachineFacts,
    Processors,
    SystemInformation,
)
from libs.common.contract.node import Node, trim_node
from libs.common.contract.platforms import CONFIGURED_PROVIDER_ID, PLATFORMS
from libs.testbed.kubelet_node import SimKubelet, build_registered_node
from libs.testbed.machine_facts import SimMachineFacts, make_machine
from libs.testbed.platform_examples import PLATFORM_EXAMPLES
from tools.generated_part import replace_part

ROOT: Final = Path(__file__).parents[1]
SAMPLES: Final = ROOT / "cli" / "render" / "samples.json"
PAGE: Final = ROOT / "docs" / "compatibility.md"
_JOINED_AT: Final = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
_SCOPES: Final = {"global": 0, "host": 254}
_TAGS: Final = {"team": "web"}  # on platforms that report tags
_SCHEMATIC: Final = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d642d1ba"  # without extensions


def render_samples() -> str:
    """Return the content of the committed samples."""
    numbers = {platform: number for number, platform in enumerate(PLATFORMS, start=1)}
    nodes = [_make_sample(platform, numbers[platform]) for platform in sorted(PLATFORMS)]
    file = {"comment": "Written by `make render-samples`. Do not edit.", "nodes": nodes}
    return json.dumps(file, indent=1, ensure_ascii=False) + "\n"


def _make_sample(platform: str, number: int) -> dict[str, Any]:
    machine = make_machine(
        f"{platform.lower()}-1",
        f"10.0.0.{number}",
        platform=platform,
        external_ips=(f"198.51.100.{number}",),
        spot=platform == "aws",
        tags=_TAGS if PLATFORM_EXAMPLES[platform].has_tags else None,
    )
    document = build_registered_node(SimKubelet.of_machine(machine), _JOINED_AT)
    document["metadata"] |= {
        "uid": f"00000000-0000-4000-8000-{number:012d}",
        "resourceVersion": str(1000 + number),
        "creationTimestamp": document["status"]["conditions"][0]["lastTransitionTime"],
    }
    node = trim_node(msgspec.convert(document, Node))
    return {"node": msgspec.to_builtins(node), "facts": msgspec.to_builtins(_make_facts(machine, platform))}


def _make_facts(machine: SimMachineFacts, platform: str) -> MachineFacts:
    assert machine.platform is not None
    return MachineFacts(
        platform=machine.platform,
        system=_make_system_information(machine, platform),
        addresses=tuple(
            AddressStatus(
                address=_prefix(each.address), link=each.link, scope=_SCOPES[each.scope], flags=each.flags
            )
            for each in machine.addresses
        ),
        node_name=machine.name,
        cluster_name="sample",
        queried_at=_JOINED_AT,
        node_ip=machine.reachable_at[0],
        inventory=_make_inventory(machine, in_container=platform == "container"),
    )


def _make_system_information(machine: SimMachineFacts, platform: str) -> SystemInformation:
    if machine.system_information is None:
        return SystemInformation()
    manufacturer, product_name = PLATFORM_EXAMPLES[platform].smbios
    return SystemInformation(
        uuid=machine.system_information.uuid, manufacturer=manufacturer, product_name=product_name
    )


def _make_inventory(machine: SimMachineFacts, *, in_container: bool) -> Inventory:
    found = Processors(manufacturer="GenuineIntel", model="Intel(R) Xeon(R)", sockets=1, cores=2, threads=4)
    return Inventory(
        talos_version=machine.talos_version,
        machine_type="worker",
        extensions={} if in_container else {"schematic": _SCHEMATIC},
        processors=Processors() if in_container else found,
        memory_mib=0 if in_container else 8192,
    )


def _prefix(text: str) -> str:
    return ipaddress.ip_interface(text).with_prefixlen


def render_platforms_page(text: str) -> str:
    """Return docs/compatibility.md with the table of platforms."""
    return replace_part(text, "platforms", "".join(_list_page_lines()), command="make render-samples")


def _list_page_lines() -> Iterator[str]:
    yield "\n| platform | providerID | public addresses from the machine's links |\n|---|---|---|\n"
    for name in sorted(PLATFORMS):
        row = PLATFORMS[name]
        form = f"`{row.provider_id}`" if row.provider_id else "-"
        form = "the user's choice" if row.provider_id == CONFIGURED_PROVIDER_ID else form
        yield f"| `{name}` | {form} | {'yes' if row.public_addresses == 'links' else 'no'} |\n"
    yield "\n"


if __name__ == "__main__":
    SAMPLES.write_text(render_samples())
    PAGE.write_text(render_platforms_page(PAGE.read_text()))
