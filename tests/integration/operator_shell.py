"""A shell in which an operator calls `talos-ccm`."""

import asyncio
import gc
import json
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from cli.__main__ import main
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts
from tests.integration.service_cluster import ApiServer, ServiceCluster

_PROGRESS = re.compile(r"\A[A-Z][a-z ]+ \.\.\.\n")  # shown if a command takes longer, see cli/progress.py


class CommandResult(NamedTuple):
    """Exit status and output of a command."""

    status: int
    out: str
    err: str


_COMMAND_LOCK = asyncio.Lock()  # environment, folder and standard streams belong to the process


async def talos_ccm(home: Path, server: ApiServer, *arguments: str, **environment: str) -> CommandResult:
    """Run the command in `home`, where kubectl would work, with `environment` added.

    It runs in a thread of this process: a process per call would spend most of its time on imports.
    """
    variables = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(server.kubeconfig()),
        **environment,
    }
    async with asyncio.timeout(HANG_SECONDS), _COMMAND_LOCK:
        return await asyncio.to_thread(_invoke, home, list(arguments), variables)


def _invoke(home: Path, arguments: list[str], variables: dict[str, str]) -> CommandResult:
    with pytest.MonkeyPatch.context() as patched:
        for name in set(os.environ) - set(variables):
            patched.delenv(name)
        for name, value in variables.items():
            patched.setenv(name, value)
        patched.chdir(home)
        with warnings.catch_warnings():
            # The command leaves sockets to the end of its process: free them here, before they fail a test.
            warnings.simplefilter("ignore", ResourceWarning)
            result = CliRunner().invoke(main, arguments)
            gc.collect()
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return CommandResult(result.exit_code, result.stdout, _PROGRESS.sub("", result.stderr))


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

    async def run(self, *arguments: str | Path, **environment: str) -> CommandResult:
        environment = {"TALOSCONFIG": str(self.machines.write_talosconfig()), **environment}
        return await talos_ccm(self.home, self.server, *map(str, arguments), **environment)

    async def explain(self, *arguments: str, **environment: str) -> CommandResult:
        return await self.run("explain", self.kind, *arguments, **environment)

    async def explained(self, *arguments: str) -> Any:
        """The JSON output of `explain`."""
        result = await self.explain(*arguments, "-o", "json")
        assert result.err == ""
        return json.loads(result.out)


def assert_refused(result: CommandResult, words: str) -> None:
    """The command exits with status 2 and an error that contains these words."""
    assert (result.status, result.out) == (2, "")
    assert words in result.err
