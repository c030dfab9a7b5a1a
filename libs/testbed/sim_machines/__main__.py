"""Simulated Talos machines with the flags and commands of `control_plane/machines`.

`-pki DIRECTORY -listen PORT,PORT`; commands are JSON lines on stdin, replies on stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from pathlib import Path
from typing import BinaryIO

import msgspec

from libs.testbed.command_channel import CallCount, Reply
from libs.testbed.machine_facts import SimMachineFacts
from libs.testbed.sim_machines.connection import Apid
from libs.testbed.sim_machines.endpoints import MachineEndpoints
from libs.testbed.sim_machines.sim_machine import MachineFaults, SimFleet
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


_LINE_BYTES = 1 << 26  # ten thousand machines may come in one line


class ControlCommand(msgspec.Struct, frozen=True):
    """One line of stdin. The reply has the same id."""

    id: int
    do: str
    machines: list[SimMachineFacts] = []
    names: list[str] = []
    endpoint: int = 0
    faults: MachineFaults = MachineFaults()


class ControlChannel:
    """Executes commands in order."""

    def __init__(self, fleet: SimFleet, endpoints: MachineEndpoints) -> None:
        self._fleet = fleet
        self._endpoints = endpoints

    async def serve(self, commands: BinaryIO, answers: BinaryIO) -> None:
        """Serve until `commands` ends. Raises msgspec.DecodeError for an invalid line."""
        reader = asyncio.StreamReader(limit=_LINE_BYTES)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), commands)
        self._write_reply(Reply(id=0), answers)
        while line := await reader.readline():
            command = msgspec.json.decode(line, type=ControlCommand)
            self._write_reply(await self.execute(command), answers)

    async def execute(self, command: ControlCommand) -> Reply:
        """Execute one command; a failure is in the reply."""
        try:
            return Reply(id=command.id, calls=await self._execute(command))
        except (ValueError, OSError) as error:  # OSError: the port of a cut endpoint was taken
            return Reply(id=command.id, error=str(error))

    @staticmethod
    def _write_reply(reply: Reply, answers: BinaryIO) -> None:
        answers.write(msgspec.json.encode(reply) + b"\n")
        answers.flush()

    async def _execute(self, command: ControlCommand) -> list[CallCount]:
        match command.do:
            case "put":
                for machine in command.machines:
                    self._fleet.put(machine, time.time_ns())
            case "delete" | "fault" | "mute":
                for name in command.names:
                    self._change_machine(name, command)
            case "cut":
                await self._endpoints.cut(command.endpoint)
            case "restore":
                self._endpoints.restore(command.endpoint)
            case "calls":
                return [CallCount(*call, count) for call, count in self._fleet.calls.items()]
            case "reset_calls":
                self._fleet.calls.clear()
            case _:
                raise ValueError(f'there is no command "{command.do}"')
        return []

    def _change_machine(self, name: str, command: ControlCommand) -> None:
        if command.do == "delete":
            self._fleet.delete(name)
        elif command.do == "fault":
            self._fleet.get_machine(name).set_faults(command.faults, time.time_ns())
        else:
            self._fleet.get_machine(name).mute_watches()


if __name__ == "__main__":
    main()
