"""A pod without a key reaches nothing in NATS, and keeps no service from it."""

from collections.abc import AsyncIterator

import pytest

from tests.bootstrap_actors import BootstrapInstallation, install_bootstrap
from tests.integration.hostile.attempts import Attempt
from tests.integration.hostile.pod_attempts import POD_ATTEMPTS, connect_service


@pytest.fixture(scope="module")
async def nats_as_installed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BootstrapInstallation]:
    """Shared by all attempts: none of them may harm the next one's service."""
    async with install_bootstrap(tmp_path_factory.mktemp("hostile-pod")) as made:
        yield made


@pytest.mark.parametrize("attempt", POD_ATTEMPTS, ids=lambda attempt: attempt.name.replace(" ", "-"))
async def test_the_attempt_has_its_outcome_and_a_service_still_connects(
    attempt: Attempt[BootstrapInstallation], nats_as_installed: BootstrapInstallation
):
    await attempt.carry_out(nats_as_installed)
    await connect_service(nats_as_installed)
