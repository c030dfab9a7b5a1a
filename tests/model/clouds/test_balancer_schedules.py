"""Random schedules of faults, crashes and changes: no load balancer is lost, doubled or left."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.clocks import run_virtually
from tests.model.clouds.balancer_cluster import RandomCluster, Scale
from tests.model.clouds.balancer_schedule import IDLE_MINUTES, run_in_a_folder
from tests.model.clouds.thalassa_cluster import ThalassaCluster

# by hand: BALANCER_SCHEDULES=100, or more Services by tests.model.clouds.balancer_run
SCHEDULES = int(os.environ.get("BALANCER_SCHEDULES", "1"))


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_no_schedule_loses_doubles_or_leaves_a_load_balancer(seed: int):
    result = run_in_a_folder(seed, Scale())
    assert not result.wrong, (result.wrong, result.story)
    assert result.idle_listings <= IDLE_MINUTES, "one list per minute"
    assert result.idle_others == 0
    assert result.node_requests <= 2
    assert result.counts["requests to the cloud"] > 100


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_no_schedule_at_thalassa_leaves_a_load_balancer_or_a_target_group(seed: int):
    """Nor does a port with an ACL become open."""
    result = run_in_a_folder(seed, Scale(groups=1), ThalassaCluster)
    assert not result.wrong, (result.wrong, result.story)
    assert result.idle_listings <= IDLE_MINUTES * 1.1, "one list per minute, and one of target groups in ten"
    assert result.idle_others == 0
    assert result.node_requests <= 6, "two for each port, and two"
    assert result.counts["requests to the cloud"] > 100


@asynccontextmanager
async def open_settled(
    cluster: type[RandomCluster], scale: Scale, folder: Path
) -> AsyncIterator[RandomCluster]:
    """With all its Nodes and Services, which have their load balancers."""
    async with cluster.open(0, folder, scale) as world:
        for number in range(scale.nodes):
            world.join(f"node-{number}", 0)
        for number in range(scale.services):
            await world.create_service(f"web-{number}", 0)
        assert await world.wait_until(lambda: not world.list_differences(), 20)
        yield world


def test_a_double_goes_within_a_minute_while_changes_of_targets_use_up_the_requests(tmp_path: Path):
    scale = Scale(services=30, nodes=25, groups=1)

    async def find_age_of_double() -> float:
        async with RandomCluster.open(0, tmp_path, scale) as world:
            for number in range(scale.services):
                await world.create_service(f"web-{number}", 0)
            assert await world.wait_until(lambda: not world.list_differences(), 10)
            world.project.actions.seconds = 1.0
            for number in range(scale.nodes):
                world.join(f"node-{number}", 0)
            await asyncio.sleep(30)
            service = world.list_services()["default.web-29"]
            labels = world.build_labels(service.uid)
            double = world.project.add_balancer("late", labels=labels)
            began = world.clock()
            assert await world.wait_until(lambda: double not in world.balancers, 30)
            age = world.clock() - began
            assert world.list_differences(), "changes of targets still wait"
            return age

    assert run_virtually(find_age_of_double(), has_servers=True) <= 65


def test_doubles_at_thalassa_go_within_a_minute_while_nodes_that_leave_use_up_the_requests(tmp_path: Path):
    scale = Scale(services=60, nodes=40, groups=1)

    async def find_age_of_doubles() -> float:
        async with open_settled(ThalassaCluster, scale, tmp_path) as world:
            for number in range(20):
                world.leave(f"node-{number}")
                await asyncio.sleep(6)
            uids = [each.uid for each in world.list_services().values()]
            doubles = {world.add_balancer(f"late-{uid}", world.build_labels(uid)) for uid in uids[::3]}
            began = world.clock()
            for number in range(20, scale.nodes):
                if not doubles & world.balancers.keys():
                    break
                world.leave(f"node-{number}")
                await asyncio.sleep(6)
            return world.clock() - began

    # A minute, and the steps of six seconds in which this test looks.
    assert run_virtually(find_age_of_doubles(), has_servers=True) < 67


@pytest.mark.parametrize("cluster", [RandomCluster, ThalassaCluster])
def test_a_node_costs_many_load_balancers_little_more_than_its_changes(
    cluster: type[RandomCluster], tmp_path: Path
):
    scale = Scale(services=20, nodes=2, groups=1)

    async def count_requests() -> Counter[str]:
        async with open_settled(cluster, scale, tmp_path) as world:
            await asyncio.sleep(65)  # for the requests of the minute
            before = len(world.cloud.requests)
            world.join("node-new", 0)
            await asyncio.sleep(60)
            assert not world.list_differences()
            requests = world.cloud.requests[before:]
            return Counter(
                "change" if each.method != "GET" else "listing" if world.is_listing(each) else "other"
                for each in requests
                if each.path != "/actions"
            )

    counts = run_virtually(count_requests(), has_servers=True)
    assert counts["change"] == scale.services
    assert counts["listing"] <= 8, "where a read of each load balancer would be one or two, twice"
    assert counts["other"] == 0


def test_a_protected_double_at_thalassa_is_released_without_the_target_groups_in_use(tmp_path: Path):
    async def release_double() -> None:
        async with ThalassaCluster.open(0, tmp_path, Scale(services=1, nodes=2, groups=1)) as world:
            world.join("node-0", 0)
            world.join("node-1", 0)
            await world.create_service("web-0", 0)
            assert await world.wait_until(lambda: not world.list_differences(), 10)
            groups = [each["identity"] for each in world.list_parts()]
            labels = world.build_labels(world.list_services()["default.web-0"].uid)
            double = world.balancers[world.add_balancer("late", labels=labels)]
            world.protect(double, is_protected=True)
            assert await world.wait_until(lambda: not double["labels"], 10)
            assert groups == [each["identity"] for each in world.list_parts()]
            assert not world.list_differences()
            for balancer in world.list_own():
                world.protect(balancer, is_protected=True)
            await world.write("DELETE", "web-0")
            assert await world.wait_until(lambda: not world.list_services(), 10)
            assert (world.list_parts(), world.list_own(), world.wrong) == ([], [], [])

    run_virtually(release_double(), has_servers=True)


def test_services_whose_balancers_vanish_share_the_proof_of_the_project(tmp_path: Path):
    scale = Scale(services=40, nodes=0, groups=1)

    async def count_proofs() -> int:
        async with RandomCluster.open(0, tmp_path, scale) as world:
            for number in range(scale.services):
                await world.create_service(f"web-{number}", 0)
            assert await world.wait_until(lambda: not world.list_differences(), 10)
            before = len(world.cloud.requests)
            for each in world.list_own():
                world.project.remove("load_balancers", each["id"])
            await asyncio.sleep(120)
            assert not world.list_differences()
            return sum(each.path.startswith("/networks/") for each in world.cloud.requests[before:])

    assert run_virtually(count_proofs(), has_servers=True) <= 20


def test_25_targets_take_no_longer_than_their_actions(tmp_path: Path):
    seconds = 0.5
    scale = Scale(services=1, nodes=0, groups=1)

    async def add_targets() -> float:
        async with RandomCluster.open(0, tmp_path, scale) as world:
            await world.create_service("web-0", 0)
            assert await world.wait_until(lambda: not world.list_differences(), 10)
            world.project.actions.seconds = seconds
            for number in range(25):
                world.join(f"node-{number}", 0)
            assert await world.wait_until(lambda: not world.list_differences(), 10)
            added = [each for each in world.project.journal if each.command == "add_target"]
            assert len(added) == 25
            return float(added[-1].at + seconds - added[0].at)

    took = run_virtually(add_targets(), has_servers=True)
    assert took <= 1.1 * 25 * seconds
