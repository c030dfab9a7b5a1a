"""Holding a Lease while the API server hangs, refuses, or comes back: never believed in too long."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Conflict, Forbidden, Unreachable
from libs.common.kube.lease_lock import LeaseGrant, LeaseLock
from tests.kube_loopback import LoopbackServer, open_api, respond_error

RENEW_DEADLINE = 4.0  # seconds; half of it is more than an answer takes on a busy machine


class LeaseServer:
    """One Lease with a resourceVersion, behind a server that can hang or refuse."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.hanging = False
        self.overtaken = 0  # writes that another client precedes
        self.refusing: web.Response | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.hanging:
            await asyncio.Event().wait()
        if self.refusing is not None:
            return self.refusing
        if request.method == "GET":
            return web.json_response(self.lease) if self.lease else respond_error(404, "NotFound")
        wanted = await request.json()
        if request.method == "PUT" and self.overtaken:
            self.overtaken -= 1
            self.version += 1
            assert self.lease is not None
            self.lease["metadata"]["resourceVersion"] = str(self.version)
        if request.method == "POST" and self.lease is not None:
            return respond_error(409, "AlreadyExists")
        if request.method == "PUT" and wanted["metadata"].get("resourceVersion") != str(self.version):
            return respond_error(409, "Conflict")
        self.version += 1
        self.lease = wanted | {"metadata": wanted["metadata"] | {"resourceVersion": str(self.version)}}
        return web.json_response(self.lease)


@pytest.fixture
async def leases(tmp_path: Path) -> AsyncIterator[tuple[LeaseServer, KubeApi]]:
    leases = LeaseServer()
    async with LoopbackServer.start() as server, open_api(server.url, tmp_path) as api:
        server.answer = leases.answer
        yield leases, api


def a_lock(api: KubeApi, identity: str = "one") -> LeaseLock:
    return LeaseLock(
        api,
        namespace="kube-system",
        name="ccm",
        identity=identity,
        now=lambda: datetime.now(UTC),
        duration_seconds=60,
        renew_deadline_seconds=RENEW_DEADLINE,
    )


async def holder_and_standby(api: KubeApi) -> tuple[LeaseLock, LeaseLock]:
    """One that holds the Lease, and one that has seen that."""
    holder, standby = a_lock(api, "holder"), a_lock(api, "standby")
    await holder.try_acquire_or_renew()
    await standby.try_acquire_or_renew()
    return holder, standby


async def test_a_hung_server_costs_the_lead_at_the_renew_deadline_and_no_call_outlasts_it(
    leases: tuple[LeaseServer, KubeApi],
):
    server, api = leases
    lock = a_lock(api)
    await lock.try_acquire_or_renew()
    held = time.monotonic()
    server.hanging = True
    while lock.is_leading:
        with pytest.raises(Unreachable, match=f"no answer within {RENEW_DEADLINE / 2:g} s"):
            await lock.try_acquire_or_renew()
    assert 0.9 * RENEW_DEADLINE < time.monotonic() - held < 50, "the Lease lasts for 60 s"


async def test_a_renewal_that_hung_is_made_good_before_the_deadline(leases: tuple[LeaseServer, KubeApi]):
    server, api = leases
    lock = a_lock(api)
    await lock.try_acquire_or_renew()
    server.hanging = True
    with pytest.raises(Unreachable):
        await lock.try_acquire_or_renew()
    server.hanging = False
    assert await lock.try_acquire_or_renew() == LeaseGrant(transitions=0)


async def test_a_missing_right_is_an_error_and_not_a_lost_race(leases: tuple[LeaseServer, KubeApi]):
    server, api = leases
    server.refusing = respond_error(403, "Forbidden", 'User "x" cannot get resource "leases"')
    with pytest.raises(Forbidden, match="get leases ccm: 403 Forbidden"):
        await a_lock(api).try_acquire_or_renew()


async def test_a_release_ends_although_the_server_hangs(leases: tuple[LeaseServer, KubeApi]):
    server, api = leases
    lock = a_lock(api)
    await lock.try_acquire_or_renew()
    server.hanging = True
    async with asyncio.timeout(30):  # three requests of 2 s; without their own deadline it would be 45 s
        assert not await lock.release()
    assert not lock.is_leading


async def test_a_standby_that_reports_between_read_and_write_costs_the_holder_no_lease(
    leases: tuple[LeaseServer, KubeApi],
):
    server, api = leases
    holder = a_lock(api, "holder")
    await holder.try_acquire_or_renew()
    server.overtaken = 2
    assert isinstance(await holder.try_acquire_or_renew(), LeaseGrant)
    server.overtaken = 99
    with pytest.raises(Conflict):
        await holder.try_acquire_or_renew()
    server.overtaken = 0
    assert isinstance(await holder.try_acquire_or_renew(), LeaseGrant)


async def test_a_report_is_new_when_it_changes_and_an_old_one_counts_for_nothing(
    leases: tuple[LeaseServer, KubeApi],
):
    _, api = leases
    holder, standby = await holder_and_standby(api)
    began = time.monotonic()
    await standby.report_standby()
    assert isinstance(await holder.try_acquire_or_renew(), LeaseGrant)
    assert holder.reported_at >= began
    successor = a_lock(api, "holder")
    await successor.try_acquire_or_renew()
    assert successor.reported_at == float("-inf"), "it was there before"
    await standby.try_acquire_or_renew()
    await standby.report_standby()
    await successor.try_acquire_or_renew()
    assert successor.reported_at > float("-inf")


async def test_a_new_holder_counts_neither_its_own_report_nor_one_to_the_holder_before(
    leases: tuple[LeaseServer, KubeApi],
):
    _, api = leases
    holder, standby, third = (a_lock(api, name) for name in ("holder", "standby", "third"))
    await holder.try_acquire_or_renew()
    for reporter in (standby, third, standby):
        await reporter.try_acquire_or_renew()
        await reporter.report_standby()
    await standby.try_acquire_or_renew()
    assert await holder.release()
    assert isinstance(await standby.try_acquire_or_renew(), LeaseGrant)
    assert standby.reported_at == float("-inf")
    assert isinstance(await standby.try_acquire_or_renew(), LeaseGrant)
    assert standby.reported_at == float("-inf")
    await third.try_acquire_or_renew()
    began = time.monotonic()
    await third.report_standby()
    await standby.try_acquire_or_renew()
    assert standby.reported_at >= began


async def test_only_a_holder_that_writes_that_it_reads_reports_gets_one(
    leases: tuple[LeaseServer, KubeApi],
):
    server, api = leases
    holder, standby = await holder_and_standby(api)
    assert (standby.holder_reads_reports, holder.holder_reads_reports) == (True, False)
    assert server.lease is not None
    server.lease["spec"]["holderIdentity"] = "reference"  # client-go keeps the annotations of others
    await standby.try_acquire_or_renew()
    before = server.version
    await standby.report_standby()
    assert (standby.holder_reads_reports, server.version) == (False, before)
