"""Releases of the chart, installed, upgraded and removed with helm and a kubeconfig."""

import asyncio
import os
from pathlib import Path

from libs.testbed.helm.chart import CHART, ChartValues


class Operator:
    """An operator with one release in its own namespace."""

    def __init__(self, program: Path, kubeconfig: Path, home: Path, *, release: str, namespace: str) -> None:
        self.release = release
        self.namespace = namespace
        self._program = program
        self._environment = {"HOME": str(home), "KUBECONFIG": str(kubeconfig), "PATH": os.environ["PATH"]}

    async def helm(self, *arguments: str) -> str:
        """Run helm, which must succeed, and return its output."""
        process = await asyncio.create_subprocess_exec(
            self._program,
            *arguments,
            f"--namespace={self.namespace}",
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = (await process.communicate())[0].decode()
        assert process.returncode == 0, output
        return output

    async def upgrade(self, values: ChartValues, chart: Path = CHART) -> str:
        """Install or upgrade the release."""
        flags = [
            argument for argument in values.build_arguments() if argument.startswith(("--values", "--set"))
        ]
        return await self.helm(
            "upgrade", "--install", self.release, str(chart), *flags, "--create-namespace", "--reset-values"
        )

    async def uninstall(self) -> None:
        """Uninstall the release and wait until its objects are deleted."""
        await self.helm("uninstall", self.release, "--wait", "--timeout=60s")
