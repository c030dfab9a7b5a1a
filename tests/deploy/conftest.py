"""One API server for the session, as one finds it where Talos has made its custom resource."""

from collections.abc import AsyncIterator

import pytest

from libs.testbed.control_plane.control_plane import ControlPlane
from tests.deploy.api_server import ApiServer


@pytest.fixture(scope="session")
async def api_server(control_plane: ControlPlane) -> AsyncIterator[ApiServer]:
    """What it is asked for here is left behind by nobody, its custom resource excepted."""
    async with ApiServer.connect(control_plane) as server, server.with_talos_accounts():
        yield server
