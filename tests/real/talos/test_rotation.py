"""Watches through Talos's own API servers while these replace their certificates or restart."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest

from libs.talos.api import MachineUnavailable, TalosApi
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.machine_facts import SimMachineFacts
from libs.testbed.machine_fleet import MachineFleet
from tests.bus_actors import wait_until
from tests.talos_actors import asking, following, opened


@pytest.fixture
async def talosconfig(front: MachineFleet, worker: SimMachineFacts, tmp_path: Path) -> Path:
    """A talosconfig; the worker has its facts."""
    await front.put_machines(worker)
    return front.write_talosconfig(tmp_path / "config")


async def wait_until_answers(api: TalosApi, machine: SimMachineFacts) -> None:
    async def answers() -> bool:
        try:
            await api.fetch_facts(machine.reachable_at[0], deadline_seconds=HANG_SECONDS)
        except MachineUnavailable as unavailable:
            if unavailable.fault.kind != "refused":
                raise
            return False
        return True

    await wait_until(answers, f"{machine.name} answers")


async def test_an_open_watch_outlives_renewed_certificates_of_both_machines(
    front: MachineFleet, worker: SimMachineFacts, control: SimMachineFacts, talosconfig: Path
):
    async with asking(talosconfig) as api, aclosing(await opened(api, worker)) as signals:
        for name in ("renewed-1", "renewed-2"):
            await front.renew_certificates(control.id, worker.id)
            await front.change_machine(worker.id, name=name)
            assert await following(signals) is None
            assert (
                await api.fetch_facts(worker.reachable_at[0], deadline_seconds=HANG_SECONDS)
            ).node_name == name


@pytest.mark.parametrize("restarted", ["worker", "control"], ids=["the machine's", "the endpoint's"])
async def test_a_watch_ends_when_an_apid_restarts_and_opens_again(
    front: MachineFleet,
    worker: SimMachineFacts,
    talosconfig: Path,
    restarted: str,
    request: pytest.FixtureRequest,
):
    async with asking(talosconfig) as api:
        async with aclosing(await opened(api, worker)) as signals:
            await front.restart_apid(request.getfixturevalue(restarted).id)
            with pytest.raises(MachineUnavailable) as ended:
                await following(signals)
        assert ended.value.fault.kind == "refused"
        await wait_until_answers(api, worker)
        await sees_a_change(front, api, worker)


async def test_a_replaced_ca_is_used_from_the_next_connection_on_and_open_watches_live_on(
    front: MachineFleet, worker: SimMachineFacts, talosconfig: Path
):
    async with asking(talosconfig) as api:
        async with aclosing(await opened(api, worker)) as signals:
            front.pki.rotate()
            front.write_talosconfig(talosconfig)
            assert (
                await api.fetch_facts(worker.reachable_at[0], deadline_seconds=HANG_SECONDS)
            ).node_name == worker.name
            await front.change_machine(worker.id, name="replaced")
            assert await following(signals) is None
        await sees_a_change(front, api, worker)


async def sees_a_change(front: MachineFleet, api: TalosApi, machine: SimMachineFacts) -> None:
    async with aclosing(await opened(api, machine)) as signals:
        await front.change_machine(machine.id, name="changed")
        assert await following(signals) is None
