"""Neutron and Octavia, behind one address with the simulated Keystone and Nova. A session shares them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.testbed.clouds.api_server import SimApiServer
from libs.testbed.clouds.openstack_services.services import OpenStackServices, RealOpenStack
from tests.real.openstack.client import OctaviaClient


@pytest.fixture(scope="session")
async def services(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenStackServices]:
    async with OpenStackServices.start(tmp_path_factory.mktemp("openstack")) as started:
        yield started


@pytest.fixture
async def server(services: OpenStackServices) -> AsyncIterator[SimApiServer[RealOpenStack]]:
    async with SimApiServer.start(RealOpenStack(services)) as started:
        yield started


@pytest.fixture
async def client(server: SimApiServer[RealOpenStack], tmp_path: Path) -> AsyncIterator[OctaviaClient]:
    async with OctaviaClient.open(server, tmp_path) as opened:
        yield opened
