"""Two instances of ours at one real control plane: each writes only what it owns."""

from collections.abc import AsyncIterator
from ipaddress import ip_network
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import MERGE
from libs.testbed.machine_fleet import SimMachineFacts, make_machine
from tests.bus_actors import wait_until
from tests.integration.lifecycle_cluster import CONTROL_PLANE, NODES, Cluster
from tests.integration.ownership_cluster import (
    POD_CIDRS,
    A,
    B,
    cluster_without_controllers,
    is_untouched,
    requested,
    running,
    until_blocked,
    writers_of_fields,
    written_by,
)


@pytest.fixture
async def cluster(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_without_controllers(control_plane, tmp_path) as running:
        yield running


def of_team(team: str) -> dict[str, Any]:
    terms = [{"key": "team", "operator": "In", "values": [team]}]
    return {"nodeSelector": [{"matchExpressions": terms}]}


def team_machines(team: str, net: int) -> dict[str, SimMachineFacts]:
    """One of each kind."""
    return {
        "cloud": make_machine(f"two-{team}-cloud", f"10.242.{net}.1", platform="hcloud"),
        "metal": make_machine(f"two-{team}-metal", f"10.242.{net}.2"),
        "silent": make_machine(f"two-{team}-silent", f"10.242.{net}.3"),
        "gone": make_machine(f"two-{team}-gone", f"10.242.{net}.4"),
    }


async def team_joins(cluster: Cluster, team: str, machines: dict[str, SimMachineFacts]) -> None:
    await cluster.machines.put_machines(machines["silent"])
    await cluster.machines.set_faults(machines["silent"].id, unavailable=True)
    await cluster.join(*machines.values(), labels={"team": team})


async def until_served(cluster: Cluster, machines: dict[str, SimMachineFacts]) -> list[str]:
    """Nodes that answer are usable and have pod CIDRs, the others have a condition; returns the pod CIDRs."""
    names = [machine.name for kind, machine in machines.items() if kind != "silent"]
    await cluster.until_usable(*names)
    assert await until_blocked(cluster, machines["silent"].name)

    async def all_have_some() -> bool:
        return all(["podCIDR" in (await cluster.node(name))["spec"] for name in names])

    await wait_until(all_have_some, "pod CIDRs", 60)
    return [(await cluster.node(name))["spec"]["podCIDR"] for name in names]


async def test_two_of_ours_with_disjoint_selectors_write_to_no_node_of_the_other(
    control_plane: ControlPlane, cluster: Cluster, tmp_path: Path
):
    since = control_plane.audit_mark()
    teams = {team: team_machines(team, net) for net, team in enumerate("ab")}
    nobodys = make_machine("two-nobodys", "10.242.9.1")
    everything = "*,node-ipam-controller,cloud-node-lifecycle"
    await cluster.join(make_machine(CONTROL_PLANE, "10.242.8.1", control_plane=True), labels={"team": "a"})
    of_a: dict[str, Any] = {"ownership": of_team("a"), "controllers": everything}
    of_b: dict[str, Any] = {"ownership": of_team("b"), "controllers": everything, "instance": B}
    async with (
        running(control_plane, cluster, tmp_path, **of_a, flags=POD_CIDRS),
        running(control_plane, cluster, tmp_path, **of_b, flags=POD_CIDRS),
    ):
        await cluster.join(nobodys, labels={"team": "c"})
        for team, machines in teams.items():
            await team_joins(cluster, team, machines)
        requests = await requested(cluster, nobodys, *(machines["cloud"] for machines in teams.values()))
        blocks = [block for machines in teams.values() for block in await until_served(cluster, machines)]
        for team in teams:
            assert (
                await cluster.kubelets.wait_for_outcome(requests[f"two-{team}-cloud"], seconds=60)
            ).certificate
            await cluster.replace(f"two-{team}-gone", by=f"two-{team}-next", labels={"team": team})
        await cluster.until_deleted("two-a-gone", "two-b-gone")  # each by the lifecycle that it belongs to
        await cluster.until_usable("two-a-next", "two-b-next")
        assert await is_untouched(cluster, requests["two-nobodys"])

    assert not [pair for pair in combinations(map(ip_network, blocks), 2) if pair[0].overlaps(pair[1])]
    wrote = {user: written_by(control_plane, user, since) for user in (A, B)}
    members = {team: {machine.name for machine in machines.values()} for team, machines in teams.items()}
    assert wrote[A] == members["a"] | {CONTROL_PLANE, "two-a-next", requests["two-a-cloud"]}
    assert wrote[B] == members["b"] | {"two-b-next", requests["two-b-cloud"]}
    fields = writers_of_fields(control_plane, cluster.joined)
    assert {len(users) for users in fields.values()} == {1}


async def zone_is(cluster: Cluster, name: str, zone: str) -> bool:
    labels = (await cluster.node(name))["metadata"]["labels"]
    return bool(labels.get("topology.kubernetes.io/zone") == zone)


async def test_a_node_that_gets_the_label_of_the_other_is_written_by_the_other_from_then_on(
    control_plane: ControlPlane, cluster: Cluster, tmp_path: Path
):
    moving = make_machine("moving", "10.242.7.1", platform="hcloud", zone="z1")
    assert moving.platform is not None
    await cluster.join(make_machine(CONTROL_PLANE, "10.242.8.1", control_plane=True), labels={"team": "a"})
    of_a: dict[str, Any] = {"ownership": of_team("a"), "controllers": "*"}
    of_b: dict[str, Any] = {"ownership": of_team("b"), "controllers": "*", "instance": B}
    async with (
        running(control_plane, cluster, tmp_path, **of_a) as cluster.services,
        running(control_plane, cluster, tmp_path, **of_b),
    ):
        await cluster.join(moving, labels={"team": "a"})
        await cluster.until_usable(moving.name)
        await cluster.until_told("Synced", moving.name)  # the last that is written about a joining Node
        relabelled = {"metadata": {"labels": {"team": "b"}}}
        await cluster.kubelets.request("PATCH", f"{NODES}/{moving.name}", body=relabelled, content_type=MERGE)
        await cluster.until_said("all-in-one", f"node={moving.name}", "outcome=not-ours")
        since = control_plane.audit_mark()
        await cluster.change(moving.name, platform=msgspec.structs.replace(moving.platform, zone="z2"))
        await wait_until(lambda: zone_is(cluster, moving.name, "z2"), "in its new zone", 60)
    assert written_by(control_plane, A, since) == set()
    assert written_by(control_plane, B, since) == {moving.name}
