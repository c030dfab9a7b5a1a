"""One API server for the session, with the custom resource of Talos."""

from collections.abc import AsyncIterator

import pytest

from libs.testbed.control_plane.control_plane import ControlPlane
from tests.deploy.api_server import ApiServer


@pytest.fixture(scope="session")
async def api_server(control_plane: ControlPlane) -> AsyncIterator[ApiServer]:
    """Every test deletes its objects; only the custom resource stays."""
    async with ApiServer.connect(control_plane) as server, server.with_talos_accounts():
        yield server
