"""An operator's cluster, and a shell in which `talos-ccm` is called."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts
from libs.testbed.sim_apiserver.server import SimApiServer

_SECONDS = 60

Server = SimApiServer | ControlPlane


class CommandResult(NamedTuple):
    """What a command said, and how it ended."""

    status: int
    out: str
    err: str


async def talos_ccm(home: Path, server: Server, *arguments: str, **environment: str) -> CommandResult:
    """Run the command in `home`, where kubectl would work; `environment` is added to what it needs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", *arguments),
        cwd=home,
        env={
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(server.kubeconfig()),
            "PYTHONPATH": str(Path.cwd()),
            **environment,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(_SECONDS):
        out, err = await process.communicate()
    assert process.returncode is not None
    assert b"Traceback" not in err, err.decode()
    return CommandResult(process.returncode, out.decode(), err.decode())


class Cluster:
    """An operator's cluster, and a shell in which kubectl and talosctl would work."""

    def __init__(
        self, explained: str, home: Path, server: Server, machines: MachineFleet, kubelets: KubeletFleet
    ) -> None:
        """`explained` is what `explain` explains: "csr", "node"."""
        self._explained = explained
        self.home = home
        self.server = server
        self.machines = machines
        self.kubelets = kubelets

    async def join(self, *machines: SimMachineFacts) -> None:
        await self.machines.put_machines(*machines)
        await self.kubelets.join_all(map(SimKubelet.of_machine, machines))

    async def asks(self, machine: SimMachineFacts, **wanted: Any) -> str:
        return await self.kubelets.request_certificate(SimKubelet.of_machine(machine), **wanted)

    async def explain(self, *arguments: str, **environment: str) -> CommandResult:
        environment = {"TALOSCONFIG": str(self.machines.write_talosconfig()), **environment}
        return await talos_ccm(self.home, self.server, "explain", self._explained, *arguments, **environment)

    async def explained(self, *arguments: str) -> Any:
        """What it says to programs."""
        said = await self.explain(*arguments, "-o", "json")
        assert said.err == ""
        return json.loads(said.out)
