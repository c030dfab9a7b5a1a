"""The two API servers that one suite holds to the same behaviour; where they differ, the real is right."""

from collections.abc import AsyncIterator

import pytest

from libs.common.kube_api.api import KubeApi
from libs.common.kube_api.config import load_kube_config
from libs.testbed.control_plane.cluster import ControlPlane
from libs.testbed.kubelets import Kubelets
from libs.testbed.sim_apiserver.server import SimApiServer

ApiServer = ControlPlane | SimApiServer


@pytest.fixture(scope="session", params=["real", "simulated"])
async def api_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ApiServer]:
    """No controller manager runs here, so that nobody else writes; use names of your own, and clean up."""
    run_dir = tmp_path_factory.mktemp(f"{request.param}-api-server")
    if request.param == "real":
        async with ControlPlane.start(run_dir, controller_manager=False) as control_plane:
            yield control_plane
    else:
        async with SimApiServer.start(run_dir) as simulated:
            yield simulated


@pytest.fixture(scope="session")
async def api(api_server: ApiServer) -> AsyncIterator[KubeApi]:
    made = KubeApi(
        load_kube_config(api_server.kubeconfig(), {}), user_agent="talos-ccm/test", instance="test"
    )
    yield made
    await made.close()


@pytest.fixture(scope="session")
async def admin(api_server: ApiServer) -> AsyncIterator[Kubelets]:
    """Requests as admin, and as any node."""
    async with Kubelets.start(api_server) as running:
        yield running
