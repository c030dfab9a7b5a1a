"""The real API server accepts the token of a service until it is revoked."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from libs.common.contract.services import LABELER
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.service_account_tokens import ServiceAccountTokens
from libs.testbed.service_permissions import get_user_name
from libs.testbed.service_processes import grant_permissions
from tests.bus_actors import wait_until


@pytest.fixture
async def anonymous(control_plane: ControlPlane) -> AsyncIterator[aiohttp.ClientSession]:
    context = ssl.create_default_context(cafile=control_plane.ca_file)
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(control_plane.server, connector=connector) as session:
        yield session


async def get_status(session: aiohttp.ClientSession, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    async with session.get("/api/v1/nodes/none", headers=headers) as answer:
        return answer.status


async def wait_until_rejected(session: aiohttp.ClientSession, token: str) -> None:
    """The API server must not have accepted it: it accepts such a token again for some seconds."""

    async def is_rejected() -> bool:
        return await get_status(session, token) == 401

    await wait_until(is_rejected, "the token is rejected")


async def test_a_token_has_the_rights_of_its_service_until_it_is_rotated_or_revoked(
    kubelets: KubeletFleet, anonymous: aiohttp.ClientSession, tmp_path: Path
):
    file, tokens = tmp_path / "token", ServiceAccountTokens(kubelets)
    await grant_permissions(kubelets, [LABELER])
    await tokens.issue(get_user_name(LABELER), file)
    assert (file.stat().st_mode & 0o777) == 0o600
    first = file.read_text()
    await tokens.rotate_all()
    second = file.read_text()
    await wait_until_rejected(anonymous, first)
    assert await get_status(anonymous, second) == 404  # the labeler may fetch a Node
    await tokens.rotate_all()
    await tokens.revoke_all()
    await wait_until_rejected(anonymous, file.read_text())
