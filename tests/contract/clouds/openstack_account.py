"""Our client of the simulated OpenStack, with a credential file."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from libs.clouds.openstack.openstack_instances import OpenStackInstances

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
) -> AsyncIterator[OpenStackInstances]:
    """A client by the credential in `folder`, without a limit of requests per minute unless one is given."""
    file = write_cloud_conf(folder, endpoint, user=user)
    options = {"requests_per_minute": 10_000} | options
    instances = OpenStackInstances(file, user_agent="talos-ccm/test", **options)
    try:
        yield instances
    finally:
        await instances.close()
