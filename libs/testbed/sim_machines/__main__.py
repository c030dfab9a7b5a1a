"""Simulated Talos machines: `-pki DIRECTORY -listen PORT,PORT`, as for `control_plane/machines`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from libs.testbed.sim_machines.connection import Apid
from libs.testbed.sim_machines.control import ControlChannel
from libs.testbed.sim_machines.endpoints import MachineEndpoints
from libs.testbed.sim_machines.fleet import SimFleet
from libs.testbed.sim_machines.talos_service import TalosService


async def serve(certificates: Path, ports: list[int]) -> None:
    """Serve until stdin closes."""
    fleet = SimFleet()
    endpoints = MachineEndpoints(Apid(TalosService(fleet)), certificates, ports)
    endpoints.open()
    await ControlChannel(fleet, endpoints).serve(sys.stdin.buffer, sys.stdout.buffer)


def main() -> None:
    """Read the flags and serve."""
    parser = argparse.ArgumentParser(prog="sim_machines", description=__doc__)
    parser.add_argument(
        "-pki", type=Path, required=True, help="directory with ca.crt, server.crt, server.key"
    )
    parser.add_argument("-listen", required=True, help="ports of the endpoints, separated by commas")
    flags = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(serve(flags.pki, [int(port) for port in flags.listen.split(",")]))


if __name__ == "__main__":
    main()
