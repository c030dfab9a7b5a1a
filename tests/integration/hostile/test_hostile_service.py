"""A stolen NATS key may do what its service may do; Nodes and other services survive it."""

from collections.abc import AsyncIterator

import pytest

from libs.testbed.kubelets import KubeletFleet
from libs.testbed.sim_apiserver.server import SimApiServer
from tests.bootstrap_actors import install_bootstrap
from tests.integration.hostile.attacked_cluster import run_attacked_cluster
from tests.integration.hostile.attempts import Attempt
from tests.integration.hostile.service_attempts import SERVICE_ATTEMPTS
from tests.integration.hostile.stolen_keys import StolenKeys

# What services correct at their regular intervals takes seconds here, and minutes by default.
OFTEN = ("--node-status-update-frequency=3s", "--metadata-republish-interval=5s")


@pytest.fixture(scope="module")
async def keys(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[StolenKeys]:
    run_dir = tmp_path_factory.mktemp("hostile-service")
    async with (
        SimApiServer.start(run_dir / "api") as server,
        KubeletFleet.start(server) as kubelets,
        install_bootstrap(run_dir / "nats") as nats,
        run_attacked_cluster(server, kubelets, run_dir, nats, *OFTEN) as cluster,
    ):
        yield StolenKeys(cluster=cluster, nats=nats)


@pytest.mark.parametrize("attempt", SERVICE_ATTEMPTS, ids=lambda attempt: attempt.name.replace(" ", "-"))
async def test_the_attempt_has_its_outcome_and_the_next_node_is_served(
    attempt: Attempt[StolenKeys], keys: StolenKeys
):
    before = await keys.cluster.snapshot_victims()
    await attempt.carry_out(keys)
    await keys.wait_until_corrected()
    await keys.cluster.let_honest_node_join()
    assert await keys.cluster.snapshot_victims() == before
    assert all(child.is_running for child in keys.cluster.services.children.values())
    await keys.cluster.services.wait_until_ready()
