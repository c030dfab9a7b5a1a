"""Who may open an exposed console, on a real and a simulated API server."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common.kube.access_reviews import review_access, review_token
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Invalid
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.kubelets import KubeletFleet
from tests.bus_actors import wait_until
from tests.console.console_logins import KINDS, ExposedConsole, Viewer, open_viewer, run_exposed_console
from tests.contract.conftest import ApiServer

SECONDS = 10.0


@pytest.fixture
async def viewer(api_server: ApiServer, admin: KubeletFleet, tmp_path: Path) -> AsyncIterator[Viewer]:
    async with open_viewer(api_server, admin, "console-viewer", tmp_path) as opened:
        yield opened


@pytest.fixture
async def console(
    api_server: ApiServer, admin: KubeletFleet, tmp_path: Path
) -> AsyncIterator[ExposedConsole]:
    async with run_exposed_console(api_server, admin, tmp_path) as running:
        yield running


async def test_a_token_belongs_to_its_user_until_it_is_revoked(api: KubeApi, viewer: Viewer):
    user = await review_token(api, viewer.token, deadline_seconds=SECONDS)
    assert user is not None
    assert user.username == viewer.user
    assert {"system:serviceaccounts", "system:authenticated"} <= set(user.groups)
    await viewer.revoke_token()

    async def is_revoked() -> bool:  # the real API server caches tokens for seconds
        return await review_token(api, viewer.token, deadline_seconds=SECONDS) is None

    await wait_until(is_revoked, "the token is revoked")


async def test_an_unknown_token_belongs_to_no_user_and_an_empty_one_is_invalid(api: KubeApi):
    assert await review_token(api, "unknown", deadline_seconds=SECONDS) is None
    with pytest.raises(Invalid, match="token is required"):
        await review_token(api, "", deadline_seconds=SECONDS)


async def test_the_rights_of_a_reviewed_user_follow_its_bindings(api: KubeApi, viewer: Viewer):
    user = await review_token(api, viewer.token, deadline_seconds=SECONDS)
    assert user is not None

    async def may(verb: str, group: str, resource: str) -> bool:
        attributes = {"verb": verb, "group": group, "resource": resource}
        return await review_access(api, user, attributes, deadline_seconds=SECONDS)

    async def may_list() -> bool:
        return await may("list", "certificates.k8s.io", "certificatesigningrequests")

    await wait_until(may_list, "the authorizer applies the binding")
    assert not await may("delete", "", "nodes")
    assert not await may("list", "", "certificatesigningrequests"), "another group"
    await viewer.forbid("certificatesigningrequests")

    async def is_forbidden() -> bool:
        return not await may_list()

    await wait_until(is_forbidden, "the authorizer applies the change")


async def test_a_user_with_the_rights_logs_in_sees_the_state_and_logs_out(
    console: ExposedConsole, viewer: Viewer
):
    assert await console.get("/api/state") == 401
    cookie = await console.wait_for_login(viewer)
    assert await console.get("/api/state", cookie) == 200
    async with console.follow(cookie) as stream:
        status, _, _ = await console.post("/logout", Cookie=cookie)
        assert status == 303
        await asyncio.wait_for(stream, HANG_SECONDS)
    assert await console.get("/api/state", cookie) == 401


@pytest.mark.parametrize("lacked", KINDS)
async def test_a_user_without_a_right_is_refused_and_reads_which(
    api_server: ApiServer, admin: KubeletFleet, console: ExposedConsole, tmp_path: Path, lacked: str
):
    others = [kind for kind in KINDS if kind != lacked]
    async with open_viewer(api_server, admin, f"lacks-{lacked}", tmp_path, tuple(others)) as viewer:

        async def is_told() -> bool:
            console.clock.advance(60)
            return await console.log_in(viewer.token) == (403, f"{viewer.user} may not list {lacked}.")

        await wait_until(is_told, "the refusal")


async def test_a_wrong_token_is_refused(console: ExposedConsole):
    status, problem = await console.log_in("wrong")
    assert (status, "does not accept this token" in problem) == (403, True)


async def test_a_withdrawn_right_ends_the_session_and_its_stream(console: ExposedConsole, viewer: Viewer):
    cookie = await console.wait_for_login(viewer)
    async with console.follow(cookie) as stream:
        await viewer.forbid("nodes")
        await console.check_until(stream)
    assert await console.get("/api/state", cookie) == 401


async def test_a_deleted_token_ends_the_session_and_its_stream(console: ExposedConsole, viewer: Viewer):
    cookie = await console.wait_for_login(viewer)
    async with console.follow(cookie) as stream:
        await viewer.revoke_token()
        await console.check_until(stream)
    assert await console.get("/api/state", cookie) == 401
