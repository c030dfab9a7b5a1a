"""Releases of the chart, as somebody with helm and a kubeconfig installs, upgrades and removes them."""

import asyncio
import os
from pathlib import Path

from libs.testbed.helm.chart import CHART, ChartValues


class Operator:
    """Of one release in a namespace of its own."""

    def __init__(self, program: Path, kubeconfig: Path, home: Path, *, release: str, namespace: str) -> None:
        self.release = release
        self.namespace = namespace
        self._program = program
        self._environment = {"HOME": str(home), "KUBECONFIG": str(kubeconfig), "PATH": os.environ["PATH"]}

    async def helm(self, *arguments: str) -> str:
        """What helm says; it must succeed."""
        process = await asyncio.create_subprocess_exec(
            self._program,
            *arguments,
            f"--namespace={self.namespace}",
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said = (await process.communicate())[0].decode()
        assert process.returncode == 0, said
        return said

    async def upgrade(self, values: ChartValues, chart: Path = CHART) -> str:
        """Install it, or change what is installed."""
        said = [
            argument for argument in values.build_arguments() if argument.startswith(("--values", "--set"))
        ]
        return await self.helm(
            "upgrade", "--install", self.release, str(chart), *said, "--create-namespace", "--reset-values"
        )

    async def uninstall(self) -> None:
        """Until its objects are gone."""
        await self.helm("uninstall", self.release, "--wait", "--timeout=60s")
