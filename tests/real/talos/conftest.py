"""A cluster behind Talos's own API servers: a control plane machine, which is the endpoint, and a worker."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.testbed.machine_facts import (
    Extension,
    MemoryModule,
    Processor,
    Route,
    SimMachineFacts,
    make_machine,
    make_member,
)
from libs.testbed.machine_fleet import MachineFleet


@pytest.fixture(scope="session")
def control() -> SimMachineFacts:
    """The control plane machine."""
    return make_machine("control-1", "10.80.255.1", control_plane=True)


@pytest.fixture(scope="session")
def worker(control: SimMachineFacts) -> SimMachineFacts:
    """A worker with every resource that the services read of one."""
    return make_machine(
        "web-1",
        "10.80.0.1",
        ip6="fd00:80::1",
        platform="hcloud",
        extensions=(Extension(name="schematic", version="376567"),),
        processors=(Processor(),),
        memory_modules=(MemoryModule(),),
        routes=(Route(gateway="10.80.0.254"),),
        members=(make_member(control),),
    )


@pytest.fixture(scope="module")
async def front(
    control: SimMachineFacts, worker: SimMachineFacts, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[MachineFleet]:
    """The running cluster, one for each file."""
    async with MachineFleet.start_behind_apid(tmp_path_factory.mktemp("front")) as running:
        await running.put_machines(control, worker)
        yield running


@pytest.fixture
def no_namespaces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user who may not create namespaces: unshare fails."""
    unshare = tmp_path / "bin" / "unshare"
    unshare.parent.mkdir()
    unshare.write_text('#!/bin/sh\necho "unshare $1: not permitted" >&2\nexit 1\n')
    unshare.chmod(0o755)
    monkeypatch.setenv("PATH", f"{unshare.parent}{os.pathsep}{os.environ['PATH']}")
