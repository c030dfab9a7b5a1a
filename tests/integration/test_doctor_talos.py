"""`talos-ccm inside talos`: what a mounted credential is worth, asked of machines that answer, or not."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cli.doctor.snapshot import CredentialProbe, InstallationSnapshot
from cli.inside.talos_credential import TalosCredentialReport
from cli.inside.talos_probe import probe_credential
from libs.testbed.machine_fleet import MachineFleet, make_machine
from libs.testbed.ports import allocate_port
from tests.doctor_cases import format_observations, make_remote_clock, make_snapshot, run_check

FIRST, WORKER, NOBODY = "10.232.0.1", "10.232.0.2", "10.232.0.99"


@pytest.fixture(scope="module")
async def fleet(machines: MachineFleet) -> AsyncIterator[MachineFleet]:
    some = (make_machine("doctor-cp", FIRST, control_plane=True), make_machine("doctor-worker", WORKER))
    await machines.put_machines(*some)
    yield machines
    await machines.delete_machines(*(machine.id for machine in some))


async def looked(
    monkeypatch: pytest.MonkeyPatch, path: Path, *node_ips: str, endpoints: str = ""
) -> TalosCredentialReport:
    monkeypatch.setenv("TALOSCONFIG", str(path))
    monkeypatch.setenv("HOME", str(path.parent))
    monkeypatch.delenv("TALOS_ENDPOINTS", raising=False)
    return await probe_credential(node_ips, endpoints)


def with_report(talos: TalosCredentialReport) -> InstallationSnapshot:
    return make_snapshot(talos=CredentialProbe(report=talos, clock=make_remote_clock()))


def told(talos: TalosCredentialReport, state: str = "wrong") -> str:
    """What the check makes of it."""
    return format_observations(
        "talos", make_snapshot(talos=CredentialProbe(report=talos, clock=make_remote_clock())), state
    )


async def test_a_good_credential_is_answered(
    fleet: MachineFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    talos = await looked(monkeypatch, fleet.write_talosconfig(tmp_path / "config"), FIRST, WORKER)
    assert (talos.problem, talos.roles) == ("", ("os:reader",))
    assert [machine.name for machine in talos.machines] == ["doctor-cp", "doctor-worker"]
    assert (
        run_check(
            "talos", make_snapshot(talos=CredentialProbe(report=talos, clock=make_remote_clock()))
        ).state
        == "ok"
    )


async def test_a_machine_that_does_not_answer_is_told_and_the_others_are_not(
    fleet: MachineFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    talos = await looked(monkeypatch, fleet.write_talosconfig(tmp_path / "config"), WORKER, NOBODY)
    words = told(talos)
    assert f"{NOBODY}: " in words
    assert WORKER not in words


async def test_one_endpoint_of_two_that_is_dead_is_told(
    fleet: MachineFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dead = f"127.0.0.1:{allocate_port()}"
    path = fleet.write_talosconfig(tmp_path / "config")
    talos = await looked(monkeypatch, path, WORKER, endpoints=",".join((dead, *fleet.endpoints)))
    assert f"not every endpoint answers: {dead}" in told(talos)
    assert [machine.fault for machine in talos.machines] == [""]


async def test_a_role_that_talos_refuses_is_told(
    fleet: MachineFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = fleet.write_talosconfig(tmp_path / "config", roles=["os:etcd:backup:not"])
    assert "has the roles os:etcd:backup:not, but needs os:reader" in told(await looked(monkeypatch, path))


async def test_a_certificate_that_has_expired_and_a_file_that_is_missing_or_spoilt_are_told(
    fleet: MachineFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    old = datetime.now(UTC) - timedelta(days=2)
    expired = fleet.write_talosconfig(tmp_path / "config", issued_at=old)
    assert "expired" in told(await looked(monkeypatch, expired, FIRST))
    assert "no talosconfig" in told(await looked(monkeypatch, tmp_path / "nothing"))
    spoilt = tmp_path / "spoilt"
    spoilt.write_text("context: [")
    assert "not a talosconfig" in told(await looked(monkeypatch, spoilt))
