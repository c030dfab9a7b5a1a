"""The real and the simulated API server, which pass the same tests; the real one is right if they differ."""

from collections.abc import AsyncIterator

import pytest

from libs.common.contract.node import Node
from libs.common.kube.api import KubeApi
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelet_node import UNINITIALIZED
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.sim_apiserver.server import SimApiServer
from tests.conftest import start_control_plane
from tests.deploy.api_server import ApiServer as ApiObjects
from tests.kube_loopback import open_api_by

ApiServer = ControlPlane | SimApiServer


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run what is marked `real_only` on real servers only; `sim_apiserver` and decision 9 list it."""
    left_out = [
        item
        for item in items
        if isinstance(item, pytest.Function)
        if item.get_closest_marker("real_only") and hasattr(item, "callspec")
        if any(str(value).startswith(("simulated", "python")) for value in item.callspec.params.values())
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
async def real_api_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """Runs no controller manager, so only the tests write; use unique names, and clean up.

    It serves the custom resource of Talos, as the simulated one does.
    """
    run_dir = tmp_path_factory.mktemp("real-api-server")
    async with (
        start_control_plane(run_dir, controller_manager=False) as running,
        ApiObjects.connect(running) as objects,
        objects.with_talos_accounts(),
    ):
        yield running


@pytest.fixture(scope="session")
async def simulated_api_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SimApiServer]:
    async with SimApiServer.start(tmp_path_factory.mktemp("simulated-api-server")) as running:
        yield running


@pytest.fixture(scope="session", params=[pytest.param("real", marks=pytest.mark.real_servers), "simulated"])
def api_server(request: pytest.FixtureRequest) -> ApiServer:
    """Both run until the end of the session, because the parameter changes with every file."""
    server: ApiServer = request.getfixturevalue(f"{request.param}_api_server")
    return server


@pytest.fixture(scope="session")
async def api(api_server: ApiServer) -> AsyncIterator[KubeApi]:
    async with open_api_by(api_server.kubeconfig(), instance="test") as made:
        yield made


@pytest.fixture(scope="session")
async def admin(api_server: ApiServer) -> AsyncIterator[KubeletFleet]:
    """Requests as admin, and as any node."""
    async with KubeletFleet.start(api_server) as running:
        yield running


@pytest.fixture
async def node(admin: KubeletFleet, api: KubeApi, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    """A Node with one label and the taints that admission gives it: `uninitialized` and `not-ready`."""
    name = f"n{abs(hash(request.node.name)) % 10**12}"
    metadata = {"name": name, "labels": {"here": "before"}, "annotations": {"a": "b"}}
    body = {"metadata": metadata, "spec": {"taints": [UNINITIALIZED]}}
    await admin.send("POST", "/api/v1/nodes", body=body)
    yield await api.get_node(name)
    await admin.delete_node(name)


@pytest.fixture(scope="session")
def real_signer(control_plane: ControlPlane) -> ControlPlane:
    """With a controller manager, which signs approved requests."""
    return control_plane


@pytest.fixture(
    scope="session",
    params=[pytest.param("real_signer", marks=pytest.mark.real_servers), "simulated_api_server"],
    ids=["real", "simulated"],
)
def signing_api_server(request: pytest.FixtureRequest) -> ApiServer:
    server: ApiServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture(scope="session")
async def signing(signing_api_server: ApiServer) -> AsyncIterator[KubeletFleet]:
    """Requests as admin and as any node, where a controller signs."""
    async with KubeletFleet.start(signing_api_server) as running:
        yield running
