"""`python -m libs.testbed.compose.talos`: one Talos endpoint with NODES machines behind it."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time

from libs.testbed.compose.addresses import FOLDER, TALOS_PORT, read_fleet
from libs.testbed.machine_facts import SimMachineFacts
from libs.testbed.sim_machines.connection import listen
from libs.testbed.sim_machines.sim_machine import SimFleet
from libs.testbed.sim_machines.talos_service import TalosService


async def serve(fleet: list[SimMachineFacts]) -> None:
    """Serve until SIGTERM or SIGINT."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    machines = SimFleet()
    for machine in fleet:
        machines.put(machine, time.time_ns())
    await listen(TalosService(machines), FOLDER / "talos", [TALOS_PORT], host="0.0.0.0")  # noqa: S104 - in a container's network
    print(f"talos: {len(fleet)} machines serve on port {TALOS_PORT}", flush=True)
    await ended.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(serve(read_fleet()))
