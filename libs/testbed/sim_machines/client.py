"""Starts the simulated machines. Their client is that of the machines on COSI's own server."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from libs.testbed.machine_fleet import MachineFleet


@contextlib.asynccontextmanager
async def start_machines(run_dir: Path, *, endpoints: int = 1) -> AsyncIterator[MachineFleet]:
    """A process of their own, so that they take no time from the event loop of who starts them."""
    program = [sys.executable, "-m", "libs.testbed.sim_machines"]
    async with MachineFleet.start_program(program, run_dir, endpoints=endpoints) as machines:
        yield machines
