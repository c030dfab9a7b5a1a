"""Simulated Talos machines with the flags of `control_plane/machines`, and its commands put and delete.

`-pki DIRECTORY -listen PORT,PORT`; commands are JSON lines on stdin, replies on stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from pathlib import Path

import msgspec

from libs.testbed.command_channel import Reply
from libs.testbed.machine_facts import SimMachineFacts
from libs.testbed.sim_machines.connection import listen
from libs.testbed.sim_machines.sim_machine import SimFleet
from libs.testbed.sim_machines.talos_service import TalosService

_LINE_BYTES = 1 << 26  # ten thousand machines may come in one line


class ControlCommand(msgspec.Struct, frozen=True):
    """One line of stdin. The reply has the same id."""

    id: int
    do: str
    machines: list[SimMachineFacts] = []
    names: list[str] = []


async def serve(certificates: Path, ports: list[int]) -> None:
    """Serve until stdin closes."""
    fleet = SimFleet()
    await listen(TalosService(fleet), certificates, ports, host="127.0.0.1")
    await _serve_commands(fleet)


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


async def _serve_commands(fleet: SimFleet) -> None:
    """Execute commands in order until stdin ends. An error ends the process, with a traceback in its log."""
    reader = asyncio.StreamReader(limit=_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    _write_reply(Reply(id=0))
    while line := await reader.readline():
        command = msgspec.json.decode(line, type=ControlCommand)
        _execute(fleet, command)
        _write_reply(Reply(id=command.id))


def _execute(fleet: SimFleet, command: ControlCommand) -> None:
    match command.do:
        case "put":
            for machine in command.machines:
                fleet.put(machine, time.time_ns())
        case "delete":
            for name in command.names:
                fleet.delete(name)
        case _:
            raise ValueError(f'the simulated machines have no command "{command.do}"')


def _write_reply(reply: Reply) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
