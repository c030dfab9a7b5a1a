"""Our client of the simulated Hetzner Cloud API, with a token file."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from libs.clouds.hcloud.hcloud_instances import HcloudInstances

TOKEN = "token-of-web"


@asynccontextmanager
async def open_account(
    endpoint: str, folder: Path, *, token: str = TOKEN, **options: Any
) -> AsyncIterator[HcloudInstances]:
    """A client by the token in `folder/token`, without a limit of requests per minute unless one is given."""
    file = folder / "token"
    file.write_text(token + "\n")
    options = {"requests_per_minute": 10_000} | options
    instances = HcloudInstances(file, user_agent="talos-ccm/test", endpoint=endpoint, **options)
    try:
        yield instances
    finally:
        await instances.close()
