"""Starts the simulated machines, with the same client as for `control_plane/machines`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from libs.testbed.machine_fleet import MachineFleet


@contextlib.asynccontextmanager
async def start_machines(run_dir: Path, *, endpoints: int = 1) -> AsyncIterator[MachineFleet]:
    """Start them in a separate process, so that they take no time from the caller's event loop."""
    program = [sys.executable, "-m", "libs.testbed.sim_machines"]
    async with MachineFleet.start_program(program, run_dir, endpoints=endpoints) as machines:
        yield machines
