"""Certificates that rotate, expire or are not trusted, against servers that verify them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from libs.talos.api import TalosApi
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.machine_fleet import MachineFleet, make_machine
from tests.talos_actors import asking, query_fault, write_config_of_foreign_client

IP = "10.74.0.1"
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
async def rotating(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MachineFleet]:
    """Machines whose CA the tests of this module replace."""
    async with MachineFleet.start(tmp_path_factory.mktemp("rotating")) as machines:
        await machines.put_machines(make_machine("rotating-1", IP, control_plane=True))
        yield machines


async def test_a_renewed_certificate_is_used_without_a_restart_or_a_failed_look(
    rotating: MachineFleet, tmp_path: Path
):
    config = rotating.write_talosconfig(tmp_path / "config")
    async with asking(config) as api:
        for hours in range(1, 6):
            rotating.write_talosconfig(config, lifetime=hours * HOUR)
            looks = await asyncio.gather(
                *(api.fetch_facts(IP, deadline_seconds=HANG_SECONDS) for _ in range(20))
            )
            assert len(looks) == 20
            expires = api.certificate_expires_at()
            assert expires is not None
            assert expires < datetime.now(UTC) + hours * HOUR


async def test_looks_under_way_when_the_file_changes_are_answered(rotating: MachineFleet, tmp_path: Path):
    config = rotating.write_talosconfig(tmp_path / "config")
    await rotating.set_faults("rotating-1", delay_ms=200)
    async with asking(config) as api:
        old = [asyncio.create_task(api.fetch_facts(IP, deadline_seconds=HANG_SECONDS)) for _ in range(5)]
        await rotating.count_calls()
        rotating.write_talosconfig(config, lifetime=HOUR)
        new = [asyncio.create_task(api.fetch_facts(IP, deadline_seconds=HANG_SECONDS)) for _ in range(5)]
        assert all(facts.node_name == "rotating-1" for facts in await asyncio.gather(*old, *new))
    await rotating.set_faults("rotating-1")


async def test_an_open_watch_outlives_the_certificate_that_it_was_opened_with(
    rotating: MachineFleet, tmp_path: Path
):
    config = rotating.write_talosconfig(tmp_path / "config")
    async with asking(config) as api:
        signals = api.watch_machine(IP, read_deadline_seconds=HANG_SECONDS)
        assert await anext(signals) is not None
        rotating.write_talosconfig(config, lifetime=HOUR)
        await api.fetch_facts(IP, deadline_seconds=HANG_SECONDS)
        await rotating.change_machine("rotating-1", talos_version="v1", name="rotating-1b")
        async with asyncio.timeout(HANG_SECONDS):
            assert await anext(signals) is None
        await signals.aclose()
        await rotating.change_machine("rotating-1", name="rotating-1")


@asynccontextmanager
async def asking_before_rotation(rotating: MachineFleet, config: Path) -> AsyncIterator[TalosApi]:
    """A client that has queried a machine; then the CA is replaced, and `config` still has the old one."""
    rotating.write_talosconfig(config)
    async with asking(config, recheck_seconds=3600) as api:
        await api.fetch_facts(IP, deadline_seconds=HANG_SECONDS)
        rotating.pki.rotate()
        yield api


async def test_a_replaced_ca_is_a_certificate_fault_until_the_file_has_it_and_then_none(
    rotating: MachineFleet, tmp_path: Path
):
    config = tmp_path / "config"
    async with asking_before_rotation(rotating, config) as api:
        await rotating.cut_endpoint(0)
        await rotating.restore_endpoint(0)
        fault = await query_fault(api, IP)
        assert (fault.kind, fault.step) == ("certificate", "connect")
        assert "its certificate is not trusted" in fault.message
        rotating.write_talosconfig(config)
        # The rejection itself triggers a check of the file.
        assert (await api.fetch_facts(IP, deadline_seconds=HANG_SECONDS)).node_name == "rotating-1"


async def test_many_looks_that_meet_a_replaced_ca_all_use_the_new_file(
    rotating: MachineFleet, tmp_path: Path
):
    config = tmp_path / "config"
    async with asking_before_rotation(rotating, config) as api:
        rotating.write_talosconfig(config)
        await rotating.cut_endpoint(0)
        await rotating.restore_endpoint(0)
        looks = await asyncio.gather(*(api.fetch_facts(IP, deadline_seconds=HANG_SECONDS) for _ in range(50)))
        assert len(looks) == 50


async def test_an_expired_certificate_is_a_certificate_fault_with_its_time(
    rotating: MachineFleet, tmp_path: Path
):
    config = rotating.write_talosconfig(tmp_path / "config", issued_at=datetime.now(UTC) - 7 * HOUR)
    async with asking(config) as api:
        fault = await query_fault(api, IP)
        assert (fault.kind, fault.step) == ("certificate", "connect")
        assert "our client certificate expired 60 min ago" in fault.message
        assert "is the clock of this host ahead?" in fault.message  # the file was written just now
        assert "expired" in api.problem()
        rotating.write_talosconfig(config)
        assert (await api.fetch_facts(IP, deadline_seconds=HANG_SECONDS)).node_name == "rotating-1"
        assert api.problem() == ""


async def test_a_certificate_of_another_cluster_is_not_accepted_by_talos(
    rotating: MachineFleet, tmp_path: Path
):
    """Their CA is trusted by us, but ours not by them: with TLS 1.3 our own handshake succeeds."""
    async with asking(write_config_of_foreign_client(rotating, tmp_path)) as api:
        fault = await query_fault(api, IP)
    assert (fault.kind, fault.step) == ("certificate", "connect")
    assert "our client certificate is not accepted" in fault.message


async def test_endpoints_that_change_in_the_file_are_used(rotating: MachineFleet, tmp_path: Path):
    config = rotating.write_talosconfig(tmp_path / "config", endpoints=["127.0.0.1:1"])
    async with asking(config) as api:
        assert (await query_fault(api, IP)).kind == "refused"
        rotating.write_talosconfig(config)
        assert (await api.fetch_facts(IP, deadline_seconds=HANG_SECONDS)).node_name == "rotating-1"
