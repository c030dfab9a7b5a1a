"""Clients of Talos machines, and queries that fail as expected."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from libs.common.contract.machine import MachineFault
from libs.talos.api import MachineUnavailable, TalosApi, WatchSnapshot
from libs.talos.credentials import CredentialStore
from libs.testbed.machine_facts import SimMachineFacts
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.talos_pki import TalosPki


@asynccontextmanager
async def asking(config: Path, *, recheck_seconds: float = 0.0) -> AsyncIterator[TalosApi]:
    """A client with the credentials of this talosconfig."""
    store = CredentialStore([config], recheck_seconds=recheck_seconds)
    api = TalosApi(store, clock=lambda: datetime.now(UTC))
    try:
        yield api
    finally:
        await api.close()


def write_config_of_foreign_client(machines: MachineFleet, folder: Path) -> Path:
    """A talosconfig that trusts the machines, with the client certificate of an authority of its own."""
    foreign = TalosPki(folder / "pki", ["127.0.0.1"])
    ours, theirs = (
        msgspec.yaml.decode(pki.talosconfig(machines.endpoints)) for pki in (foreign, machines.pki)
    )
    ours["contexts"]["default"]["ca"] = theirs["contexts"]["default"]["ca"]
    config = folder / "config"
    config.write_bytes(msgspec.yaml.encode(ours))
    return config


async def query_fault(api: TalosApi, node_ip: str, *, deadline_seconds: float = 5) -> MachineFault:
    """Why a look at that machine fails; the test fails if it does not."""
    with pytest.raises(MachineUnavailable) as unavailable:
        await api.fetch_facts(node_ip, deadline_seconds=deadline_seconds)
    return unavailable.value.fault


async def opened(
    api: TalosApi, machine: SimMachineFacts, *, silence: float = 30
) -> AsyncGenerator[WatchSnapshot | None, None]:
    """An open watch, which ends after that many silent seconds."""
    signals = api.watch_machine(machine.reachable_at[0], read_deadline_seconds=silence)
    assert isinstance(await following(signals), WatchSnapshot)
    return signals


async def following(signals: AsyncGenerator[WatchSnapshot | None, None]) -> WatchSnapshot | None:
    """The next signal of a watch."""
    async with asyncio.timeout(10):
        return await anext(signals)
