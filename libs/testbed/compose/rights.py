"""`python -m libs.testbed.compose.rights`: wait for the API server and grant each service its permissions."""

from __future__ import annotations

import asyncio
import sys
import time
from http import HTTPStatus
from typing import Final

import aiohttp

from libs.common.contract.services import SERVICES
from libs.testbed.compose.addresses import FOLDER, Admin
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.service_processes import grant_permissions

_START_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.2


async def grant_when_ready(services: list[str]) -> None:
    """Grant these services the permissions of their specs. Raises TimeoutError or RequestRejected."""
    begun = time.monotonic()
    async with KubeletFleet.start(Admin(FOLDER / "nodes")) as admin, asyncio.timeout(_START_SECONDS):
        while not await _is_ready(admin):  # noqa: ASYNC110 - another process, which sets no event
            await asyncio.sleep(_POLL_SECONDS)
        print(f"rights: the API server was ready after {time.monotonic() - begun:.1f} s")
        await grant_permissions(admin, [wiring for wiring in SERVICES if wiring.service in services])


async def _is_ready(admin: KubeletFleet) -> bool:
    try:
        return (await admin.request("GET", "/readyz")).status == HTTPStatus.OK
    except aiohttp.ClientError:
        return False


if __name__ == "__main__":
    asyncio.run(grant_when_ready(sys.argv[1:]))
