"""Our client of the simulated OpenStack, with a credential file."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from libs.clouds.instances import Instances
from libs.testbed.clouds.openstack.server import SimOpenStack, SimOpenStackServer
from tests.contract.clouds.accounts import make_client

CLOUD_CONF = """
[Global]
auth-url = {endpoint}/identity/v3
username = {user}
password = "{user}-secret"
tenant-name = {user}
domain-name = Default
region = {region}
"""


def write_cloud_conf(folder: Path, endpoint: str, *, user: str = "web", region: str = "RegionOne") -> Path:
    """Write the credential of the user's project."""
    file = folder / "cloud.conf"
    file.write_text(CLOUD_CONF.format(endpoint=endpoint, user=user, region=region))
    return file


class OpenStackAccount:
    """A project of OpenStack with a network, in the region of its cloud.conf."""

    provider = "openstack"
    scheme = "openstack"

    def __init__(self, server: SimOpenStackServer) -> None:
        self.server = server
        self.project = server.cloud.state.add_project("web")

    def write_credential(self, folder: Path, *, region: str = "RegionOne") -> Path:
        return write_cloud_conf(folder, self.server.endpoint, region=region)

    def add_machine(self, name: str) -> str:
        return f"/{self.project.add_server(name)}"

    def remove_machine(self, machine_id: str) -> None:
        """Nova has neither the server nor its actions any more."""
        self.project.lose_server(machine_id[1:])

    def delete_machine(self, machine_id: str) -> None:
        """Nova deletes it, and has its actions."""
        self.project.delete_server(machine_id[1:])

    def add_anchor(self) -> None:
        self.project.add_network()


@asynccontextmanager
async def open_openstack() -> AsyncIterator[OpenStackAccount]:
    """An empty project, which has a second region."""
    async with SimOpenStackServer.start(SimOpenStack(regions=("RegionOne", "south"))) as server:
        yield OpenStackAccount(server)


@asynccontextmanager
async def open_account(
    endpoint: str, folder: Path, *, user: str = "web", **options: Any
) -> AsyncIterator[Instances]:
    """A client by the credential in `folder`, without a limit of requests per minute unless one is given."""
    file = write_cloud_conf(folder, endpoint, user=user)
    instances = make_client("openstack", file, **options)
    try:
        yield instances
    finally:
        await instances.close()
