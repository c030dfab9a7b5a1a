"""A machine's stage and the members of its cluster, asked of real COSI servers with Talos's own types."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from libs.talos.api import MachineUnavailable, TalosApi, WatchSnapshot
from libs.talos.credentials import CredentialStore
from libs.talos.resources import MACHINE_STATUS, MEMBERS
from libs.testbed.machine_fleet import MachineFleet, make_machine, make_member

NODE = "10.74.0.1"
WEB = make_machine("lifecycle-1", NODE)
CONTROL_PLANE = make_machine("lifecycle-cp", "10.74.0.100", control_plane=True)


@pytest.fixture
async def talos(machines: MachineFleet, tmp_path: Path) -> AsyncIterator[TalosApi]:
    store = CredentialStore([machines.write_talosconfig(tmp_path / "config")])
    api = TalosApi(store, clock=lambda: datetime.now(UTC), with_stage=True)
    await machines.put_machines(CONTROL_PLANE, WEB)
    yield api
    await api.close()
    await machines.delete_machines(CONTROL_PLANE.id, WEB.id)


async def test_a_look_tells_the_stage(machines: MachineFleet, talos: TalosApi):
    assert (await talos.fetch_facts(NODE, deadline_seconds=5)).stage == "running"
    await machines.change_machine(WEB.id, stage="shutting down")
    assert (await talos.fetch_facts(NODE, deadline_seconds=5)).stage == "shutting down"


async def test_where_nobody_wants_it_the_stage_is_neither_asked_for_nor_watched(
    machines: MachineFleet, talos: TalosApi, tmp_path: Path
):
    await talos.close()
    api = TalosApi(
        CredentialStore([machines.write_talosconfig(tmp_path / "other")]), clock=lambda: datetime.now(UTC)
    )
    await machines.reset_calls()
    assert (await api.fetch_facts(NODE, deadline_seconds=5)).stage == ""
    async with aclosing(api.watch_machine(NODE, read_deadline_seconds=5)) as signals:
        contents = await anext(signals)
        assert isinstance(contents, WatchSnapshot)
        assert contents.stage == ""
    assert not any(call.type == MACHINE_STATUS.type for call in await machines.count_calls())
    await api.close()


@pytest.mark.parametrize(
    "wrong",
    [{kind: [MACHINE_STATUS.type]} for kind in ("not_found", "unsupported", "forbidden", "slow")],
    ids=lambda wrong: next(iter(wrong)),
)
async def test_a_stage_that_is_not_told_costs_nobody_the_facts(
    machines: MachineFleet, talos: TalosApi, wrong: dict[str, Any]
):
    await machines.set_faults(WEB.id, **wrong)
    facts = await talos.fetch_facts(NODE, deadline_seconds=0.5)
    assert (facts.node_name, facts.stage) == (WEB.name, "")
    await machines.set_faults(WEB.id)


async def test_a_watch_tells_that_the_machine_shuts_down(machines: MachineFleet, talos: TalosApi):
    async with aclosing(talos.watch_machine(NODE, read_deadline_seconds=30)) as signals, asyncio.timeout(10):
        contents = await anext(signals)
        assert isinstance(contents, WatchSnapshot)
        assert contents.stage == "running"
        assert contents.matches(await talos.fetch_facts(NODE, deadline_seconds=5))
        await machines.change_machine(WEB.id, stage="shutting down")
        assert await anext(signals) is None
        assert not contents.matches(await talos.fetch_facts(NODE, deadline_seconds=5))


async def test_a_machine_without_a_stage_yet_is_watched_all_the_same(machines: MachineFleet, talos: TalosApi):
    await machines.change_machine(WEB.id, stage="")
    async with aclosing(talos.watch_machine(NODE, read_deadline_seconds=30)) as signals, asyncio.timeout(10):
        contents = await anext(signals)
        assert isinstance(contents, WatchSnapshot)
        assert contents.stage == ""
        await machines.change_machine(WEB.id, stage="booting")
        assert await anext(signals) is None


async def test_members_are_those_that_discovery_told_the_control_plane(
    machines: MachineFleet, talos: TalosApi
):
    assert await talos.list_member_names(deadline_seconds=5) == frozenset(), "discovery is off"
    others = tuple(make_member(make_machine(f"web-{i}", f"10.74.2.{i}")) for i in range(200))
    await machines.change_machine(CONTROL_PLANE.id, members=(make_member(CONTROL_PLANE), *others))
    await machines.change_machine(WEB.id, members=(make_member(WEB),))
    names = await talos.list_member_names(deadline_seconds=5)
    assert names == {"lifecycle-cp", *(f"web-{i}" for i in range(200))}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"unsupported": [MEMBERS.type]}, "not_found"),
        ({"forbidden": [MEMBERS.type]}, "permission"),
        ({"hang": True}, "timeout"),
        ({"unavailable": True}, "refused"),
    ],
    ids=["unsupported", "forbidden", "hang", "unavailable"],
)
async def test_a_question_for_members_that_fails_is_no_empty_answer(
    machines: MachineFleet, talos: TalosApi, fault: dict, kind: str
):
    await machines.set_faults(CONTROL_PLANE.id, **fault)
    with pytest.raises(MachineUnavailable) as unavailable:
        await talos.list_member_names(deadline_seconds=0.5)
    assert unavailable.value.fault.kind == kind
    assert unavailable.value.fault.step == "Member"
    await machines.set_faults(CONTROL_PLANE.id)
