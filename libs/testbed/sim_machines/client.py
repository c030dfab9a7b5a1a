"""Starts the simulated machines. Their client is that of the machines on COSI's own server."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from libs.testbed.machines import Machines


@contextlib.asynccontextmanager
async def start(run_dir: Path, *, endpoints: int = 1) -> AsyncIterator[Machines]:
    """A process of their own, so that they take no time from the event loop of who starts them."""
    program = [sys.executable, "-m", "libs.testbed.sim_machines"]
    async with Machines.served_by(program, run_dir, endpoints=endpoints) as machines:
        yield machines
