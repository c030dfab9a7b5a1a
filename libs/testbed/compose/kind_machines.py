"""`python -m libs.testbed.compose.kind_machines`: a Talos endpoint with one machine per Node."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from pathlib import Path
from typing import Final

from libs.common.contract.ip_addresses import InvalidNodeIP, parse_node_ips
from libs.common.contract.node import Node
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import KubeError
from libs.common.kube.load_kube_config import load_kube_config
from libs.testbed.compose.addresses import TALOS_PORT
from libs.testbed.kubelet_node import PROVIDED_NODE_IP
from libs.testbed.machine_fleet import SimMachineFacts, make_machine
from libs.testbed.sim_machines.connection import listen
from libs.testbed.sim_machines.sim_machine import SimFleet
from libs.testbed.sim_machines.talos_service import TalosService

CERTIFICATES_FOLDER: Final = Path("/talos-machines")  # the Secret of kind_secrets
CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"
_POLL_SECONDS: Final = 2.0

_log = logging.getLogger(__name__)


def make_node_machine(node: Node) -> SimMachineFacts | None:
    """Make the machine of this Node from what its kubelet reported; None without a valid address."""
    ips = parse_node_ips(node.metadata.annotations.get(PROVIDED_NODE_IP, ""))
    if isinstance(ips, InvalidNodeIP):
        return None
    first, *second = map(str, ips)
    uuid = node.status.node_info.system_uuid
    return make_machine(
        node.metadata.name,
        first,
        ip6=second[0] if second else None,
        platform="nocloud",
        uuid=uuid,
        control_plane=CONTROL_PLANE in node.metadata.labels,
    )


async def follow_nodes(api: KubeApi, machines: SimFleet) -> None:
    """Add a machine for each Node, until cancelled; a failed list is repeated."""
    known: dict[str, SimMachineFacts] = {}
    while True:
        try:
            async for page in api.list_nodes():
                for machine in filter(None, map(make_node_machine, page.items)):
                    if known.get(machine.id) != machine:
                        known[machine.id] = machine
                        machines.put(machine, time.time_ns())
                        print(
                            f"kind_machines: {machine.name} at {', '.join(machine.reachable_at)}", flush=True
                        )
        except KubeError as error:
            _log.warning("list nodes failed, will retry: %s", error)
        await asyncio.sleep(_POLL_SECONDS)


async def main() -> None:
    """Serve until the process ends."""
    machines = SimFleet()
    await listen(TalosService(machines), CERTIFICATES_FOLDER, [TALOS_PORT], host="0.0.0.0")  # noqa: S104 - a pod
    api = KubeApi(load_kube_config(None, os.environ), user_agent="kind-machines")
    try:
        await follow_nodes(api, machines)
    finally:
        await api.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(main())
