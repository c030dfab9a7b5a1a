"""`talos-ccm inside talos`: what a mounted credential is worth, asked of machines that answer, or not."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cli.doctor.inside_talos import look
from cli.doctor.talos_seen import TalosSeen
from libs.testbed.children import free_port
from libs.testbed.machines import Machines, a_machine
from tests.doctor_cases import a_moment, judged, said, seen

FIRST, WORKER, NOBODY = "10.232.0.1", "10.232.0.2", "10.232.0.99"


@pytest.fixture(scope="module")
async def fleet(machines: Machines) -> AsyncIterator[Machines]:
    some = (a_machine("doctor-cp", FIRST, control_plane=True), a_machine("doctor-worker", WORKER))
    await machines.put(*some)
    yield machines
    await machines.delete(*(machine.id for machine in some))


async def looked(
    monkeypatch: pytest.MonkeyPatch, path: Path, *node_ips: str, endpoints: str = ""
) -> TalosSeen:
    monkeypatch.setenv("TALOSCONFIG", str(path))
    monkeypatch.setenv("HOME", str(path.parent))
    monkeypatch.delenv("TALOS_ENDPOINTS", raising=False)
    return await look(node_ips, endpoints)


def told(talos: TalosSeen, state: str = "wrong") -> str:
    """What the check makes of it."""
    return said("talos", seen(talos=talos, server_clock=a_moment()), state)


async def test_a_good_credential_is_answered(
    fleet: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    talos = await looked(monkeypatch, fleet.talosconfig(tmp_path / "config"), FIRST, WORKER)
    assert (talos.problem, talos.roles) == ("", ("os:reader",))
    assert [machine.name for machine in talos.machines] == ["doctor-cp", "doctor-worker"]
    assert judged("talos", seen(talos=talos)).state == "ok"


async def test_a_machine_that_does_not_answer_is_told_and_the_others_are_not(
    fleet: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    talos = await looked(monkeypatch, fleet.talosconfig(tmp_path / "config"), WORKER, NOBODY)
    words = told(talos)
    assert f"{NOBODY}: " in words
    assert WORKER not in words


async def test_one_endpoint_of_two_that_is_dead_is_told(
    fleet: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dead = f"127.0.0.1:{free_port()}"
    path = fleet.talosconfig(tmp_path / "config")
    talos = await looked(monkeypatch, path, WORKER, endpoints=",".join((dead, *fleet.endpoints)))
    assert f"not every endpoint answers: {dead}" in told(talos)
    assert [machine.fault for machine in talos.machines] == [""]


async def test_a_role_that_talos_refuses_is_told(
    fleet: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = fleet.talosconfig(tmp_path / "config", roles=["os:etcd:backup:not"])
    assert "has the roles os:etcd:backup:not, and os:reader is needed" in told(
        await looked(monkeypatch, path)
    )


async def test_a_certificate_that_has_expired_and_a_file_that_is_missing_or_spoilt_are_told(
    fleet: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    old = datetime.now(UTC) - timedelta(days=2)
    expired = fleet.talosconfig(tmp_path / "config", issued_at=old)
    assert "expired" in told(await looked(monkeypatch, expired, FIRST))
    assert "there is no talosconfig" in told(await looked(monkeypatch, tmp_path / "nothing"))
    spoilt = tmp_path / "spoilt"
    spoilt.write_text("context: [")
    assert "not a talosconfig" in told(await looked(monkeypatch, spoilt))
