"""A hostile machine harms only its own Node: each attempt is carried out while honest Nodes join."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from tests.bootstrap_actors import install_bootstrap
from tests.csr_actors import TwinNode
from tests.integration.hostile.attacked_cluster import AttackedCluster, run_attacked_cluster
from tests.integration.hostile.attacker import FIRST_NUMBER, Attacker
from tests.integration.hostile.attempts import Attempt
from tests.integration.hostile.node_attempts import NODE_ATTEMPTS
from tests.integration.hostile.request_attempts import REQUEST_ATTEMPTS
from tests.integration.hostile.talos_attempts import TALOS_ATTEMPTS

# in the order of docs/threat-model.md
MACHINE_ATTEMPTS: tuple[Attempt[Attacker], ...] = (*REQUEST_ATTEMPTS, *NODE_ATTEMPTS, *TALOS_ATTEMPTS)
AT_ONCE = 12
HONEST = 3

Results = dict[str, BaseException | None]
Snapshot = dict[str, dict[str, Any]]  # Nodes by name


@pytest.fixture(scope="module")
async def attacked(
    control_plane: ControlPlane, kubelets: KubeletFleet, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AttackedCluster]:
    run_dir = tmp_path_factory.mktemp("hostile-machine")
    async with (
        install_bootstrap(run_dir / "nats") as nats,
        run_attacked_cluster(control_plane, kubelets, run_dir, nats) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="module")
async def victims(attacked: AttackedCluster) -> Snapshot:
    """The Nodes of others before the attack."""
    return await attacked.snapshot_victims()


@pytest.fixture(scope="module")
async def results(request: pytest.FixtureRequest, attacked: AttackedCluster, victims: Snapshot) -> Results:
    """The error of each selected attempt, or None; all were carried out while honest Nodes joined."""
    calls = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    selected = {call.params["attempt"].name for call in calls if call and "attempt" in call.params}
    slots, outcomes = asyncio.Semaphore(AT_ONCE), Results()

    async def carry_out(number: int, attempt: Attempt[Attacker]) -> None:
        attacker = Attacker(cluster=attacked, twin=TwinNode(FIRST_NUMBER + number))
        async with slots:
            try:
                await attempt.carry_out(attacker)
            except Exception as error:  # noqa: BLE001 - raised by the test of this attempt
                outcomes[attempt.name] = error
            else:
                outcomes[attempt.name] = None

    chosen = [each for each in enumerate(MACHINE_ATTEMPTS) if each[1].name in selected]
    attack = asyncio.gather(*(carry_out(number, attempt) for number, attempt in chosen))
    await attacked.let_honest_nodes_join(least=HONEST, attack=attack)
    await attack
    return outcomes


@pytest.mark.parametrize("attempt", MACHINE_ATTEMPTS, ids=lambda attempt: attempt.name.replace(" ", "-"))
async def test_the_attempt_has_its_outcome(attempt: Attempt[Attacker], results: Results):
    error = results[attempt.name]
    if error is not None:
        raise error


async def test_all_that_others_have_is_unchanged(
    results: Results, attacked: AttackedCluster, victims: Snapshot
):
    assert await attacked.snapshot_victims() == victims


async def test_no_request_of_an_attacker_is_approved(results: Results, attacked: AttackedCluster):
    assert attacked.requests
    assert await attacked.list_approved_requests() == []


async def test_honest_nodes_got_all_that_nodes_get_meanwhile(results: Results, attacked: AttackedCluster):
    assert attacked.honest >= HONEST


async def test_no_service_ended_or_became_unready(results: Results, attacked: AttackedCluster):
    assert all(child.is_running for child in attacked.services.children.values())
    await attacked.services.wait_until_ready()
    for child in attacked.services.children.values():
        assert "Traceback" not in child.log.read_text()
