"""lifecycle at a real control plane: which Nodes go, that no others do, and that silence proves nothing."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.machine_fleet import make_machine
from tests.bus_actors import wait_until
from tests.integration.lifecycle_cluster import CONTROL_PLANE, EVIDENCE_SECONDS, USER, a_cluster

SHUTDOWN = "node.cloudprovider.kubernetes.io/shutdown:NoSchedule"
LONG_ENOUGH = 2 * EVIDENCE_SECONDS  # to delete everything, were silence a proof
SILENT = tuple(f"out-silent-{n}" for n in range(10))


@pytest.fixture(scope="module")
async def own(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """A control plane that marks Nodes without a heartbeat after 4 s, and tells who wrote what."""
    run_dir = tmp_path_factory.mktemp("lifecycle-control-plane")
    async with ControlPlane.start(run_dir, audit_fields=True, grace_seconds=4) as running:
        yield running


async def test_in_outages_no_node_is_deleted_and_after_them_the_one_whose_machine_was_replaced(
    own: ControlPlane, tmp_path: Path
):
    since = own.audit_mark()
    async with a_cluster(own, tmp_path) as cluster:
        silent = [make_machine(name, f"10.241.0.{n}") for n, name in enumerate(SILENT, 1)]
        down = make_machine("out-down", "10.241.1.2")
        await cluster.join(*silent, down, make_machine("out-replaced", "10.241.1.1"))
        await cluster.until_usable(*SILENT, "out-down", "out-replaced")
        uid = (await cluster.node("out-replaced"))["metadata"]["uid"]
        await cluster.change("out-down", stage="shutting down")
        await cluster.until_stage("out-down", "shutting down")
        for name in (*SILENT, "out-down"):
            await cluster.fall_silent(name)
        await cluster.kubelets.set_not_ready("out-down")

        async def is_tainted() -> bool:
            return SHUTDOWN in await cluster.taints("out-down")

        await wait_until(is_tainted, "the taint of a machine that is shut down")
        await cluster.replace("out-replaced", by="out-next")
        await cluster.until_proving("out-replaced")
        others = (*SILENT, "out-down", "out-next", "life-well")
        # In each: what was half a proof is none afterwards.
        await cluster.nats.kill()
        await cluster.stay("out-replaced", *others, seconds=LONG_ENOUGH)
        await cluster.nats.wipe()
        cluster.nats.child.pause()
        await cluster.stay("out-replaced", *others, seconds=LONG_ENOUGH)
        cluster.nats.child.resume()
        cluster.machines.child.pause()
        await cluster.stay(*others, seconds=LONG_ENOUGH)
        assert not any([await cluster.is_ready(name) for name in SILENT])
        assert not any([SHUTDOWN in await cluster.taints(name) for name in SILENT])
        cluster.machines.child.resume()

        await cluster.until_deleted("out-replaced", seconds=180)
        await cluster.stay(CONTROL_PLANE, *others, seconds=1)
        told = await cluster.until_told("DeletingNode", "out-replaced")
        assert "answers the machine of out-next with another UUID" in told
        writes = [each for each in own.list_node_writes(since) if each.verb == "delete" and each.user == USER]
    assert {deletion.about for deletion in writes} == {"out-replaced"}
    assert {deletion.body["preconditions"]["uid"] for deletion in writes} == {uid}
    assert all(deletion.body["preconditions"]["resourceVersion"] for deletion in writes)
