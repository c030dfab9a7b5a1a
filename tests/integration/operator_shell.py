"""A shell in which an operator calls `talos-ccm`."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts
from tests.integration.service_cluster import ApiServer, ServiceCluster

_SECONDS = 60


class CommandResult(NamedTuple):
    """Exit status and output of a command."""

    status: int
    out: str
    err: str


async def talos_ccm(home: Path, server: ApiServer, *arguments: str, **environment: str) -> CommandResult:
    """Run the command in `home`, where kubectl would work, with `environment` added."""
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


@dataclass
class Cluster:
    """A cluster, and a shell in which kubectl and talosctl would work."""

    kind: str  # the object of `explain`: "csr", "node"
    home: Path
    server: ApiServer
    machines: MachineFleet
    kubelets: KubeletFleet

    @classmethod
    def of(cls, kind: str, cluster: ServiceCluster) -> "Cluster":
        """A shell in a home directory of its own."""
        home = cluster.run_dir / "home"
        home.mkdir()
        return cls(kind, home, cluster.server, cluster.machines, cluster.kubelets)

    async def join(self, *machines: SimMachineFacts) -> None:
        await self.machines.put_machines(*machines)
        await self.kubelets.join_all(map(SimKubelet.of_machine, machines))

    async def asks(self, machine: SimMachineFacts, **wanted: Any) -> str:
        return await self.kubelets.request_certificate(SimKubelet.of_machine(machine), **wanted)

    async def explain(self, *arguments: str, **environment: str) -> CommandResult:
        environment = {"TALOSCONFIG": str(self.machines.write_talosconfig()), **environment}
        return await talos_ccm(self.home, self.server, "explain", self.kind, *arguments, **environment)

    async def explained(self, *arguments: str) -> Any:
        """The JSON output of `explain`."""
        result = await self.explain(*arguments, "-o", "json")
        assert result.err == ""
        return json.loads(result.out)


def assert_refused(result: CommandResult, words: str) -> None:
    """The command exits with status 2 and an error that contains these words."""
    assert (result.status, result.out) == (2, "")
    assert words in result.err
