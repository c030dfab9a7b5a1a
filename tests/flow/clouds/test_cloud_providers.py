"""cloud over the client of each cloud: an instance exists, is shut down, and is gone beside its anchor."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from libs.clouds.instances import Anchor
from libs.common.contract.events import (
    InstanceExists,
    InstanceGone,
    InstanceReport,
    InstanceShutDown,
    InstanceUnknown,
)
from libs.common.contract.instances import InstanceAnchor
from libs.common.contract.subjects import CLOUD_REPORTS
from services.cloud.service import CloudService
from services.cloud.settings import CloudSettings
from tests.bus_server import BusServer, run_service
from tests.clocks import ManualClock
from tests.contract.clouds.accounts import FILE, OPEN, CloudAccount, ThalassaAccount
from tests.instance_reports import make_recorded_node
from tests.service_flow import ServiceFlow

MINUTE = 61.0
ReportT = TypeVar("ReportT", bound=InstanceReport)


class ProviderFlow(ServiceFlow):
    """The service about one Node, whose instance and anchor the account has."""

    def __init__(
        self, buses: BusServer, bus: object, account: CloudAccount, cloud: str, folder: Path
    ) -> None:
        super().__init__(bus)  # type: ignore[arg-type]
        self.buses = buses
        self.account = account
        self.cloud = cloud
        self.folder = folder
        self.clock = ManualClock()
        self.anchor: Anchor = account.add_anchor()
        self.machine = account.add_machine("web-1")
        self.service: CloudService

    @asynccontextmanager
    async def run(self, provider_id: str) -> AsyncIterator[None]:
        """Run the service; the Node is not ready, so that it is asked for in each look."""
        settings = CloudSettings(
            accounts=(f"{self.cloud}/prod",),
            credential_file=self.account.write_credential(self.folder),
            endpoint=self.account.endpoint,
            step_seconds=3600.0,
            requests_per_minute=10_000,
        )
        recorded = InstanceAnchor(kind=self.anchor.kind, id=self.anchor.id)
        await self.start(make_recorded_node(provider_id=provider_id, record={"anchor": recorded}))
        async with run_service(
            self.buses, "cloud", lambda parts: CloudService(parts, settings), kube=None, clock=self.clock
        ) as self.service:
            yield

    async def look(self, kind: type[ReportT]) -> ReportT:
        """Do what is due a minute later, and return the report, which is of that kind."""
        self.clock.advance(MINUTE)
        await self.service.poller.step()
        await self.service.poller.step_round()
        message = await self.bus.get_last(f"{CLOUD_REPORTS}.prod.instance.web-1")
        assert message is not None
        assert isinstance(message.event, kind), message.event
        assert message.event.asked_at == self.clock.now()
        return message.event


@pytest.fixture(params=OPEN)
async def flow(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ProviderFlow]:
    async with (
        BusServer.open("memory", tmp_path) as buses,
        OPEN[request.param]() as account,
        buses.open_bus("watcher") as bus,
    ):
        yield ProviderFlow(buses, bus, account, request.param, tmp_path)


async def test_an_instance_exists_is_shut_down_and_is_gone_beside_its_anchor(flow: ProviderFlow):
    async with flow.run(f"{flow.account.prefix}{flow.machine}"):
        seen = await flow.look(InstanceExists)
        assert seen.anchor == InstanceAnchor(kind=flow.anchor.kind, id=flow.anchor.id)
        flow.account.shut_down(flow.machine)
        await flow.look(InstanceShutDown)
        flow.account.remove_machine(flow.machine)
        for _ in range(2):
            witness = (await flow.look(InstanceGone)).witness
            assert (witness.kind, witness.id) == ("anchor", f"{flow.anchor.kind}/{flow.anchor.id}")
        flow.account.remove_anchor(flow.anchor)
        await flow.look(InstanceUnknown)


@pytest.mark.parametrize(
    "fault", ["unauthorized", "forbidden", "rate_limited", "service_error", "proxy_not_found", "cut_off"]
)
async def test_an_instance_is_not_gone_while_the_cloud_fails(flow: ProviderFlow, fault: str):
    async with flow.run(f"{flow.account.prefix}{flow.machine}"):
        await flow.look(InstanceExists)
        flow.account.remove_machine(flow.machine)
        flow.account.server.add_fault(fault)
        await flow.look(InstanceUnknown)
        assert flow.service.problems()


async def test_an_instance_is_not_gone_while_another_has_the_name_of_its_node(flow: ProviderFlow):
    async with flow.run(f"{flow.account.prefix}{flow.machine}"):
        await flow.look(InstanceExists)
        flow.account.remove_machine(flow.machine)
        rebuilt = flow.account.add_machine("web-1")
        assert (await flow.look(InstanceUnknown)).namesake == rebuilt


async def test_a_removed_credential_ends_the_evidence(flow: ProviderFlow):
    async with flow.run(f"{flow.account.prefix}{flow.machine}"):
        await flow.look(InstanceExists)
        flow.account.remove_machine(flow.machine)
        (flow.folder / FILE).unlink()
        await flow.look(InstanceUnknown)


async def test_a_machine_that_thalassa_calls_deleted_is_gone_without_a_witness(tmp_path: Path):
    async with (
        BusServer.open("memory", tmp_path) as buses,
        OPEN["thalassa"]() as account,
        buses.open_bus("watcher") as bus,
    ):
        assert isinstance(account, ThalassaAccount)
        flow = ProviderFlow(buses, bus, account, "thalassa", tmp_path)
        async with flow.run(f"thalassacloud://{flow.machine}"):
            await flow.look(InstanceExists)
            account.organisation.set_state(flow.machine, "deleting", "deleted")
            await flow.look(InstanceExists)
            account.organisation.set_state(flow.machine, "deleted")
            account.remove_anchor(flow.anchor)
            assert (await flow.look(InstanceGone)).witness.kind == "cloud"
