"""lifecycle in outages at a real control plane: a proof that was half done is none, and silence is none."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.machine_fleet import make_machine
from tests.integration.lifecycle_cluster import EVIDENCE_SECONDS, Cluster, a_cluster

LONG_ENOUGH = 2 * EVIDENCE_SECONDS  # to delete everything, were silence a proof
SILENT = tuple(f"out-silent-{n}" for n in range(10))


@pytest.fixture(scope="module")
async def own(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """A control plane that marks Nodes without a heartbeat after 4 s."""
    run_dir = tmp_path_factory.mktemp("outage-control-plane")
    async with ControlPlane.start(run_dir, grace_seconds=4) as running:
        yield running


class Outage(NamedTuple):
    """How it begins and ends."""

    name: str
    begin: Callable[[Cluster], Awaitable[None]]
    end: Callable[[Cluster], Awaitable[None]]


async def _stop_machines(cluster: Cluster) -> None:
    cluster.machines.child.pause()


async def _let_machines_go_on(cluster: Cluster) -> None:
    cluster.machines.child.resume()


async def _kill_nats(cluster: Cluster) -> None:
    await cluster.nats.kill()


async def _wipe_nats(cluster: Cluster) -> None:
    await cluster.nats.wipe()


async def _stop_nats(cluster: Cluster) -> None:
    cluster.nats.pause()


async def _let_nats_go_on(cluster: Cluster) -> None:
    cluster.nats.resume()


OUTAGES = (
    Outage("all-machines-are-silent", _stop_machines, _let_machines_go_on),
    Outage("nats-is-dead-and-loses-everything", _kill_nats, _wipe_nats),
    Outage("nats-is-silent", _stop_nats, _let_nats_go_on),
)


@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.name)
async def test_in_an_outage_no_node_is_deleted_and_after_it_the_one_whose_machine_was_replaced(
    own: ControlPlane, tmp_path: Path, outage: Outage
):
    async with a_cluster(own, tmp_path) as cluster:
        silent = [make_machine(name, f"10.241.0.{n}") for n, name in enumerate(SILENT, 1)]
        await cluster.join(*silent, make_machine("out-replaced", "10.241.1.1"))
        await cluster.until_usable(*SILENT, "out-replaced")
        for name in SILENT:
            await cluster.fall_silent(name)
        await cluster.replace("out-replaced", by="out-next")
        await cluster.until_proving("out-replaced")

        await outage.begin(cluster)
        everybody = [*SILENT, "out-replaced", "out-next", "life-well"]
        await cluster.stay(*everybody, seconds=LONG_ENOUGH)
        assert not any([await cluster.is_ready(name) for name in (*SILENT, "out-replaced")])
        await outage.end(cluster)

        await cluster.until_deleted("out-replaced", seconds=180)
        others = [name for name in everybody if name != "out-replaced"]
        assert all([await cluster.exists(name) for name in others])


async def test_the_same_machine_under_another_name_and_one_that_discovery_still_knows_keep_their_nodes(
    own: ControlPlane, tmp_path: Path
):
    async with a_cluster(own, tmp_path) as cluster:
        renamed, known = make_machine("out-renamed", "10.241.2.1"), make_machine("out-known", "10.241.2.2")
        await cluster.join(renamed, known, make_machine("out-proven", "10.241.2.3"))
        await cluster.until_usable("out-renamed", "out-known", "out-proven")
        assert renamed.system_information is not None
        # One was reinstalled, the other one has moved to an unknown address.
        await cluster.replace("out-renamed", by="out-reinstalled", uuid=renamed.system_information.uuid)
        await cluster.replace("out-known", by="out-at-its-address", forgotten=False)
        await cluster.replace("out-proven", by="out-proof")
        await cluster.until_deleted("out-proven")
        await cluster.stay("out-renamed", "out-known", seconds=LONG_ENOUGH)
        assert "the same one" in (await cluster.decided("out-renamed")).reason
        assert "silence and errors prove nothing" in (await cluster.decided("out-known")).reason
