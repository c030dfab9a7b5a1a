"""Watches on real COSI servers: what fires, what does not, and how they end."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from libs.common.contract.machine import PlatformMetadata
from libs.talos.api import MachineUnavailable, TalosApi, WatchSnapshot
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.machine_fleet import Address, MachineFleet, make_machine
from tests.talos_actors import asking, following, opened

SILENCE_SECONDS = 0.5


@pytest.fixture
async def talos(machines: MachineFleet, tmp_path: Path) -> AsyncIterator[TalosApi]:
    async with asking(machines.write_talosconfig(tmp_path / "config")) as api:
        yield api


async def ended(signals: AsyncGenerator[WatchSnapshot | None, None]) -> bool:
    async with asyncio.timeout(HANG_SECONDS):
        return [signal async for signal in signals] == []


async def test_each_fact_that_changes_is_told(machines: MachineFleet, talos: TalosApi):
    machine = make_machine("watch-1", "10.72.0.1")
    await machines.put_machines(machine)
    async with aclosing(await opened(talos, machine)) as signals:
        await machines.change_machine("watch-1", name="watch-1b")
        assert await following(signals) is None
        await machines.change_machine("watch-1", platform=PlatformMetadata(platform="metal", region="r"))
        assert await following(signals) is None
        await machines.change_machine(
            "watch-1", addresses=(*machine.addresses, Address(address="10.72.9.9/24"))
        )
        assert await following(signals) is None
        await machines.change_machine("watch-1", addresses=machine.addresses)
        assert await following(signals) is None


async def test_nothing_is_told_when_nothing_that_we_watch_changes(machines: MachineFleet, talos: TalosApi):
    machine = make_machine("watch-2", "10.72.0.2")
    await machines.put_machines(machine)
    async with aclosing(await opened(talos, machine, silence=SILENCE_SECONDS)) as signals:
        await machines.put_machines(machine)
        await machines.change_machine("watch-2", talos_version="v9.9.9", hostname="other")
        assert await ended(signals)


async def test_a_watch_opens_before_the_resource_exists_and_tells_when_it_does(
    machines: MachineFleet, talos: TalosApi
):
    machine = make_machine("watch-3", "10.72.0.3")
    await machines.put_machines(machine)
    await machines.change_machine("watch-3", platform=None, name="")
    async with aclosing(await opened(talos, machine)) as signals:
        await machines.put_machines(machine)
        assert await following(signals) is None


async def test_a_burst_of_changes_is_told_less_often_than_it_happens_and_the_last_is_not_lost(
    machines: MachineFleet, talos: TalosApi
):
    machine = make_machine("watch-4", "10.72.0.4")
    await machines.put_machines(machine)
    told = 0
    async with aclosing(await opened(talos, machine)) as signals:
        for i in range(40):
            await machines.change_machine("watch-4", name=f"watch-4-{i}")
        while (
            await talos.fetch_facts("10.72.0.4", deadline_seconds=HANG_SECONDS)
        ).node_name != "watch-4-39" or not told:
            assert await following(signals) is None
            told += 1
    assert told < 40


async def test_service_addresses_of_ipvs_wake_nobody(machines: MachineFleet, talos: TalosApi):
    machine = make_machine("watch-5", "10.72.0.5")
    await machines.put_machines(machine)
    async with aclosing(await opened(talos, machine, silence=SILENCE_SECONDS)) as signals:
        service = Address(address="10.96.0.10/32", link="kube-ipvs0", link_index=9)
        await machines.change_machine("watch-5", addresses=(*machine.addresses, service))
        assert await ended(signals)


async def test_a_half_open_watch_ends_at_its_read_deadline(machines: MachineFleet, talos: TalosApi):
    machine = make_machine("watch-6", "10.72.0.6")
    await machines.put_machines(machine)
    async with aclosing(await opened(talos, machine, silence=SILENCE_SECONDS)) as signals:
        await machines.mute_watches("watch-6")
        await machines.change_machine("watch-6", name="watch-6b")
        assert await ended(signals)


async def test_a_machine_that_goes_down_ends_its_watch_with_the_reason(
    machines: MachineFleet, talos: TalosApi
):
    machine = make_machine("watch-7", "10.72.0.7")
    await machines.put_machines(machine)
    async with aclosing(await opened(talos, machine)) as signals:
        await machines.delete_machines("watch-7")
        with pytest.raises(MachineUnavailable) as unavailable:
            await following(signals)
    assert unavailable.value.fault.kind == "refused"
    assert unavailable.value.fault.endpoint.endswith("for 10.72.0.7")


@pytest.mark.parametrize(
    ("fault", "kind", "open_seconds"),
    [({"permission_denied": True}, "permission", HANG_SECONDS), ({"hang": True}, "timeout", 0.5)],
    ids=["forbidden", "hang"],
)
async def test_a_machine_that_cannot_be_watched_says_why_and_does_not_open_for_ever(
    machines: MachineFleet, talos: TalosApi, fault: dict[str, Any], kind: str, open_seconds: float
):
    await machines.put_machines(make_machine("watch-8", "10.72.0.8"))
    await machines.set_faults("watch-8", **fault)
    with pytest.raises(MachineUnavailable) as unavailable:
        await following(
            talos.watch_machine("10.72.0.8", read_deadline_seconds=HANG_SECONDS, open_seconds=open_seconds)
        )
    assert unavailable.value.fault.kind == kind
    await machines.set_faults("watch-8")


async def test_a_look_while_watches_are_open_is_not_held_up_by_them(machines: MachineFleet, tmp_path: Path):
    machine = make_machine("watch-10", "10.72.0.10")
    await machines.put_machines(machine)
    config = machines.write_talosconfig(tmp_path / "config")
    async with (
        asking(config, max_concurrent_queries=1) as api,
        aclosing(await opened(api, machine)),
        aclosing(await opened(api, machine)),
    ):
        assert (await api.fetch_facts("10.72.0.10", deadline_seconds=HANG_SECONDS)).node_name == "watch-10"


async def test_a_closed_watch_leaves_neither_a_stream_nor_a_task_behind(
    machines: MachineFleet, talos: TalosApi
):
    machine = make_machine("watch-11", "10.72.0.11")
    await machines.put_machines(machine)
    await talos.fetch_facts("10.72.0.11", deadline_seconds=HANG_SECONDS)
    before = asyncio.all_tasks()
    channels = talos._session._channels.values()
    signals = await opened(talos, machine)
    assert any(channel.is_busy for channel in channels)
    await signals.aclose()
    assert not any(channel.is_busy for channel in channels)
    assert not asyncio.all_tasks() - before


async def test_closing_the_api_ends_its_watches(machines: MachineFleet, talos: TalosApi):
    machine = make_machine("watch-12", "10.72.0.12")
    await machines.put_machines(machine)
    async with aclosing(await opened(talos, machine)) as signals:
        await talos.close()
        with pytest.raises(MachineUnavailable):
            await following(signals)
