"""Our client of the simulated OpenStack, with a credential file."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from libs.clouds.instances import Instances
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
