"""lifecycle at a real control plane: which Nodes go, that no others do, and what it asks for."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.common.contract.services import LIFECYCLE
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.machine_fleet import make_machine
from tests.bus_actors import wait_until
from tests.integration.lifecycle_cluster import CONTROL_PLANE, USER, Cluster, a_cluster

SHUTDOWN = "node.cloudprovider.kubernetes.io/shutdown:NoSchedule"


@pytest.fixture(scope="module")
async def own(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """A control plane that marks Nodes without a heartbeat after 10 s, and tells who wrote what."""
    run_dir = tmp_path_factory.mktemp("lifecycle-control-plane")
    async with ControlPlane.start(run_dir, audit_fields=True, grace_seconds=10) as running:
        yield running


def written(own: ControlPlane, since: int) -> list[tuple[str, str, str]]:
    """What lifecycle wrote about Nodes: verb, resource, Node."""
    return [
        (write.verb, write.resource, write.about)
        for write in own.list_node_writes(since)
        if write.user == USER
    ]


async def replaced(cluster: Cluster, *names: str) -> None:
    """Machines that are initialized, and then others stand in their place."""
    await cluster.join(*(make_machine(name, f"10.240.1.{n}") for n, name in enumerate(names, 1)))
    await cluster.until_usable(*names)
    for name in names:
        await cluster.replace(name, by=f"{name}-next")


@pytest.mark.parametrize(
    "form", [{}, {"all_in_one": True, "bus": "memory"}], ids=["separate-processes", "all-in-one-memory"]
)
async def test_the_node_of_a_machine_that_was_replaced_is_deleted_and_no_other(
    own: ControlPlane, tmp_path: Path, form: dict[str, Any]
):
    since = own.audit_mark()
    async with a_cluster(own, tmp_path, **form) as cluster:
        await cluster.join(make_machine("life-old", "10.240.0.5"))
        await cluster.until_usable("life-old")
        uid = (await cluster.node("life-old"))["metadata"]["uid"]
        await cluster.replace("life-old", by="life-new")
        await cluster.until_deleted("life-old")
        assert all([await cluster.exists(name) for name in (CONTROL_PLANE, "life-well", "life-new")])
        told = await cluster.until_told("DeletingNode", "life-old")
        assert "answers the machine of life-new with another UUID" in told
        user = "talos-ccm" if form else USER
        deleted = [
            each for each in own.list_node_writes(since) if each.verb == "delete" and each.user == user
        ]
    [deletion] = deleted
    assert (deletion.about, deletion.code) == ("life-old", 200)
    assert deletion.body["preconditions"]["uid"] == uid
    assert deletion.body["preconditions"]["resourceVersion"]


async def test_it_asks_for_what_its_role_allows_and_writes_to_the_node_that_it_deletes_alone(
    own: ControlPlane, tmp_path: Path
):
    since = own.audit_mark()
    async with a_cluster(own, tmp_path) as cluster:
        await replaced(cluster, "life-asked")
        await cluster.until_deleted("life-asked")
        await cluster.until_told("DeletingNode", "life-asked")
    asked = {request for request in own.audit_counts(since) if request.user == USER}
    allowed = {(verb, right.resource) for right in LIFECYCLE.policy_rules for verb in right.verbs}
    assert {(request.verb, request.resource) for request in asked} <= allowed
    lease = {request for request in asked if request.resource == "leases"}
    assert all(request.succeeded for request in asked - lease)  # at first there is no Lease to be read
    assert sorted(written(own, since)) == [
        ("create", "events", "life-asked"),
        ("delete", "nodes", "life-asked"),
    ]


async def test_a_dry_run_tells_what_it_would_do_and_writes_to_no_node(own: ControlPlane, tmp_path: Path):
    since = own.audit_mark()
    async with a_cluster(own, tmp_path, flags=["--lifecycle-dry-run"]) as cluster:
        await replaced(cluster, "life-dry")
        await cluster.until_told("WouldDeleteNode", "life-dry")
        decided = await cluster.until_decided("life-dry", "would-delete")
        assert decided.outcome == "would-delete"
        assert "answers the machine of life-dry-next" in decided.reason
        await cluster.stay("life-dry", seconds=3)
    assert written(own, since) == [("create", "events", "life-dry")]


async def test_no_more_are_deleted_in_an_hour_than_may_be_and_a_new_process_remembers_it(
    own: ControlPlane, tmp_path: Path
):
    names = {"life-cap-1", "life-cap-2"}
    async with a_cluster(own, tmp_path, flags=["--lifecycle-max-deletions-per-hour=1"]) as cluster:
        await replaced(cluster, *sorted(names))
        left: set[str] = set()

        async def one_is_left_for_the_cap() -> bool:
            nonlocal left
            left = {name for name in names if await cluster.exists(name)}
            return len(left) == 1 and await is_capped(cluster, *left)

        await wait_until(one_is_left_for_the_cap, "one is deleted, and one kept for the cap", 90)
        [kept] = left
        before = (await cluster.decided(kept)).decided_at
        await cluster.start_again("lifecycle", "metadata")  # which looks seldom at what has failed often

        async def is_capped_again() -> bool:
            return await is_capped(cluster, kept) and (await cluster.decided(kept)).decided_at > before

        await wait_until(is_capped_again, "kept for the cap by the new process", 90)
        assert await cluster.exists(kept)


async def test_a_second_replica_goes_on_when_the_first_ends_and_one_deletion_is_asked_for(
    own: ControlPlane, tmp_path: Path
):
    since = own.audit_mark()
    async with a_cluster(own, tmp_path, replicas={"lifecycle": 2}) as cluster:
        await replaced(cluster, "life-twice")
        await cluster.until_proving("life-twice")
        await cluster.services.children["lifecycle"].stop()
        assert await cluster.exists("life-twice")
        await cluster.until_deleted("life-twice", seconds=150)
        await cluster.until_told("DeletingNode", "life-twice")
    assert [each for each in written(own, since) if each[0] == "delete"] == [
        ("delete", "nodes", "life-twice")
    ]


async def is_capped(cluster: Cluster, name: str) -> bool:
    decided = await cluster.decided(name)
    return decided.outcome == "kept" and "--lifecycle-max-deletions-per-hour is 1" in decided.reason


async def test_a_machine_that_said_that_it_shuts_down_is_tainted_while_it_is_silent_and_never_deleted(
    own: ControlPlane, tmp_path: Path
):
    async with a_cluster(own, tmp_path) as cluster:
        await cluster.join(make_machine("life-down", "10.240.2.1"), make_machine("life-lost", "10.240.2.2"))
        await cluster.until_usable("life-down", "life-lost")
        await cluster.change("life-down", stage="shutting down")
        await cluster.until_stage("life-down", "shutting down")
        for name in ("life-down", "life-lost"):
            await cluster.fall_silent(name)
            await cluster.kubelets.set_not_ready(name)

        async def is_tainted() -> bool:
            return SHUTDOWN in await cluster.taints("life-down")

        async def is_clean() -> bool:
            return not await is_tainted()

        await wait_until(is_tainted, "the taint of a machine that is shut down", 60)
        await cluster.until_decided("life-down", "shutdown")
        assert SHUTDOWN not in await cluster.taints("life-lost")
        await cluster.come_back("life-down", stage="running")
        await wait_until(is_clean, "no taint of a machine that answers", 90)
        assert await cluster.exists("life-lost")


async def test_a_preempted_gcp_spot_machine_is_deleted_where_that_is_asked_for_and_another_is_not(
    own: ControlPlane, tmp_path: Path
):
    async with a_cluster(own, tmp_path, flags=["--delete-preempted-gcp-spot"]) as cluster:
        spot = make_machine("life-spot", "10.240.3.1", platform="gcp", spot=True)
        lasting = make_machine("life-lasting", "10.240.3.2", platform="gcp", zone="elsewhere-a")
        await cluster.join(spot, lasting)
        await cluster.until_usable("life-spot", "life-lasting")
        # Kubernetes taints what is not ready as long as some Node is, and as such while its kubelet says so.
        async with cluster.kubelets.keep_heartbeats(*cluster.joined):
            for name in cluster.joined:
                await cluster.kubelets.set_ready(name)
            for name in ("life-spot", "life-lasting"):
                await cluster.fall_silent(name)
                await cluster.kubelets.set_not_ready(name)
            await cluster.until_deleted("life-spot")
            assert "GCP spot machine" in await cluster.until_told("DeletingNode", "life-spot")

            async def is_tainted_too() -> bool:
                return "node.kubernetes.io/not-ready:NoExecute" in await cluster.taints("life-lasting")

            await wait_until(is_tainted_too, "the other one is no better off", 60)
