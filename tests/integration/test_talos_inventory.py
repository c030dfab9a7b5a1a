"""What a machine is beyond its facts, its stage and its cluster's members, asked of real COSI servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from libs.common.contract.machine import Inventory, Processors
from libs.talos.api import InventoryResponse, MachineUnavailable, Part, TalosApi, WatchSnapshot
from libs.talos.resources import INVENTORY, MACHINE_STATUS, MEMBERS
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.machine_fleet import (
    Extension,
    MachineFleet,
    MemoryModule,
    Processor,
    Route,
    make_machine,
    make_member,
)
from tests.talos_actors import asking

NODE = "10.73.1.1"
ALL = tuple(part for part in INVENTORY if part != "RouteStatus")  # what rules may name

SOON = 3.0  # the deadline of a query that hangs; until then a busy machine connects


@pytest.fixture
async def talos(machines: MachineFleet, tmp_path: Path) -> AsyncIterator[TalosApi]:
    await machines.put_machines(
        make_machine(
            "inventory-1",
            NODE,
            talos_version="v1.13.5",
            extensions=(Extension(name="schematic", version="376567"), Extension(name="zfs", version="2.3")),
            processors=(
                Processor(manufacturer="AMD", product_name="EPYC", core_count=8, core_enabled=8),
                Processor(socket="CPU 1", boot_speed=0, core_count=0, core_enabled=0, thread_count=0),
            ),
            memory_modules=(MemoryModule(), MemoryModule(locator="DIMM 1", size=8192)),
        )
    )
    async with asking(machines.write_talosconfig(tmp_path / "config")) as api:
        yield api
    await machines.delete_machines("inventory-1")


async def asked(talos: TalosApi, *parts: Part, deadline_seconds: float = HANG_SECONDS) -> InventoryResponse:
    return await talos.fetch_inventory(NODE, parts or ALL, deadline_seconds=deadline_seconds)


async def test_everything_that_rules_may_name(talos: TalosApi):
    assert await asked(talos) == InventoryResponse(
        inventory=Inventory(
            talos_version="v1.13.5",
            machine_type="worker",
            extensions={"schematic": "376567", "zfs": "2.3"},
            processors=Processors(manufacturer="AMD", model="EPYC", sockets=1, cores=8, threads=2),
            memory_mib=12288,
        )
    )


async def test_gateways_are_those_of_all_routes_but_the_local_ones(machines: MachineFleet, talos: TalosApi):
    answer = await asked(talos, "RouteStatus")
    assert answer.inventory == Inventory(gateways=()), "asked, and it has none"
    routes = (
        Route(gateway="10.73.1.254"),
        Route(gateway="10.73.1.254", destination="10.0.0.0/8"),
        Route(gateway="fd00:73::fe", ipv6=True, link="lan0"),
        Route(gateway="fe80::1%eth0", ipv6=True),
        Route(destination="10.73.1.0/24"),
        Route(destination="10.96.0.1/32", gateway="10.9.9.9", table="local", link="kube-ipvs0"),
    )
    await machines.change_machine("inventory-1", routes=routes)
    answer = await asked(talos, "RouteStatus")
    assert answer == InventoryResponse(inventory=Inventory(gateways=("10.73.1.254", "fd00:73::fe")))


async def test_only_what_is_needed_is_asked_for(machines: MachineFleet, talos: TalosApi):
    await machines.reset_calls()
    answer = await asked(talos, "MachineType")
    assert answer == InventoryResponse(inventory=Inventory(machine_type="worker"))
    assert {call.type: count for call, count in (await machines.count_calls()).items()} == {
        "MachineTypes.config.talos.dev": 1
    }


async def test_what_an_old_talos_or_a_container_does_not_have_is_known_to_be_absent(
    machines: MachineFleet, talos: TalosApi
):
    types = [one.type for one in INVENTORY.values()]
    nothing = Inventory(
        talos_version="", machine_type="", extensions={}, processors=Processors(), memory_mib=0
    )
    await machines.set_faults("inventory-1", unsupported=types)
    assert await asked(talos) == InventoryResponse(inventory=nothing)
    await machines.set_faults("inventory-1", not_found=types)
    assert await asked(talos) == InventoryResponse(inventory=nothing)


async def test_what_our_role_may_not_read_is_unknown_and_says_so(machines: MachineFleet, talos: TalosApi):
    await machines.set_faults("inventory-1", forbidden=[INVENTORY["Processor"].type])
    answer = await asked(talos, "Processor", "Version")
    assert answer.inventory == Inventory(talos_version="v1.13.5")
    assert answer.faults["Processor"].kind == "permission"
    assert "os:reader" in answer.faults["Processor"].message


async def test_a_part_that_hangs_ends_at_the_deadline_and_takes_no_other_with_it(
    machines: MachineFleet, talos: TalosApi
):
    await machines.set_faults("inventory-1", slow=[INVENTORY["MemoryModule"].type])
    answer = await asked(talos, "MemoryModule", "Version", deadline_seconds=SOON)
    assert answer.inventory == Inventory(talos_version="v1.13.5")
    assert {part: (fault.kind, fault.step) for part, fault in answer.faults.items()} == {
        "MemoryModule": ("timeout", "MemoryModule")
    }


STAGED = "10.74.0.1"
WEB = make_machine("lifecycle-1", STAGED)
CONTROL_PLANE = make_machine("lifecycle-cp", "10.74.0.100", control_plane=True)


@pytest.fixture
async def staged(machines: MachineFleet, tmp_path: Path) -> AsyncIterator[TalosApi]:
    await machines.put_machines(CONTROL_PLANE, WEB)
    async with asking(machines.write_talosconfig(tmp_path / "config"), with_stage=True) as api:
        yield api
    await machines.delete_machines(CONTROL_PLANE.id, WEB.id)


async def test_a_look_tells_the_stage(machines: MachineFleet, staged: TalosApi):
    assert (await staged.fetch_facts(STAGED, deadline_seconds=HANG_SECONDS)).stage == "running"
    await machines.change_machine(WEB.id, stage="shutting down")
    assert (await staged.fetch_facts(STAGED, deadline_seconds=HANG_SECONDS)).stage == "shutting down"


async def test_where_nobody_wants_it_the_stage_is_neither_asked_for_nor_watched(
    machines: MachineFleet, staged: TalosApi, tmp_path: Path
):
    await staged.close()
    async with asking(machines.write_talosconfig(tmp_path / "other")) as api:
        await machines.reset_calls()
        assert (await api.fetch_facts(STAGED, deadline_seconds=HANG_SECONDS)).stage == ""
        async with aclosing(api.watch_machine(STAGED, read_deadline_seconds=HANG_SECONDS)) as signals:
            contents = await anext(signals)
            assert isinstance(contents, WatchSnapshot)
            assert contents.stage == ""
        assert not any(call.type == MACHINE_STATUS.type for call in await machines.count_calls())


@pytest.mark.parametrize(
    "wrong",
    [{kind: [MACHINE_STATUS.type]} for kind in ("not_found", "unsupported", "forbidden", "slow")],
    ids=lambda wrong: next(iter(wrong)),
)
async def test_a_stage_that_is_not_told_costs_nobody_the_facts(
    machines: MachineFleet, staged: TalosApi, wrong: dict[str, Any]
):
    await machines.set_faults(WEB.id, **wrong)
    deadline = SOON if "slow" in wrong else HANG_SECONDS
    facts = await staged.fetch_facts(STAGED, deadline_seconds=deadline)
    assert (facts.node_name, facts.stage) == (WEB.name, "")
    await machines.set_faults(WEB.id)


async def test_a_watch_tells_that_the_machine_shuts_down(machines: MachineFleet, staged: TalosApi):
    async with (
        aclosing(staged.watch_machine(STAGED, read_deadline_seconds=HANG_SECONDS)) as signals,
        asyncio.timeout(HANG_SECONDS),
    ):
        contents = await anext(signals)
        assert isinstance(contents, WatchSnapshot)
        assert contents.stage == "running"
        assert contents.matches(await staged.fetch_facts(STAGED, deadline_seconds=HANG_SECONDS))
        await machines.change_machine(WEB.id, stage="shutting down")
        assert await anext(signals) is None
        assert not contents.matches(await staged.fetch_facts(STAGED, deadline_seconds=HANG_SECONDS))


async def test_a_machine_without_a_stage_yet_is_watched(machines: MachineFleet, staged: TalosApi):
    await machines.change_machine(WEB.id, stage="")
    async with (
        aclosing(staged.watch_machine(STAGED, read_deadline_seconds=HANG_SECONDS)) as signals,
        asyncio.timeout(HANG_SECONDS),
    ):
        contents = await anext(signals)
        assert isinstance(contents, WatchSnapshot)
        assert contents.stage == ""
        await machines.change_machine(WEB.id, stage="booting")
        assert await anext(signals) is None


async def test_members_are_those_that_discovery_told_the_control_plane(
    machines: MachineFleet, staged: TalosApi
):
    assert await staged.list_member_names(deadline_seconds=HANG_SECONDS) == frozenset(), "discovery is off"
    others = tuple(make_member(make_machine(f"web-{i}", f"10.74.2.{i}")) for i in range(200))
    await machines.change_machine(CONTROL_PLANE.id, members=(make_member(CONTROL_PLANE), *others))
    await machines.change_machine(WEB.id, members=(make_member(WEB),))
    names = await staged.list_member_names(deadline_seconds=HANG_SECONDS)
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
    machines: MachineFleet, staged: TalosApi, fault: dict, kind: str
):
    await machines.set_faults(CONTROL_PLANE.id, **fault)
    with pytest.raises(MachineUnavailable) as unavailable:
        await staged.list_member_names(deadline_seconds=SOON if kind == "timeout" else HANG_SECONDS)
    assert unavailable.value.fault.kind == kind
    assert unavailable.value.fault.step == "Member"
    await machines.set_faults(CONTROL_PLANE.id)
