"""Who reads a talosconfig with auth.siderov1 alone refuses it before any machine is asked."""

from pathlib import Path

import msgspec
import pytest

from cli.cluster.access import AccessError, open_talos_client
from cli.inside import talos_probe
from services.metadata.machines.talos_client import open_talos
from services.metadata.settings import MetadataSettings
from tests.watcher_actors import make_dependencies

REFUSAL = (
    "context 'omni': auth.siderov1 ('a@example.com') alone is not supported, nor is a service account key"
)


@pytest.fixture
def omni(tmp_path: Path) -> Path:
    context = {"endpoints": ["https://omni.example.com"], "auth": {"siderov1": {"identity": "a@example.com"}}}
    file = tmp_path / "omni"
    file.write_bytes(msgspec.yaml.encode({"context": "omni", "contexts": {"omni": context}}))
    return file


async def test_metadata_is_not_ready(omni: Path):
    machines = open_talos(make_dependencies(None), MetadataSettings(talosconfig=omni))  # type: ignore[arg-type]  # no bus
    assert REFUSAL in machines.problem()
    await machines.close()


def test_commands_that_ask_machines_end_with_it(omni: Path):
    with pytest.raises(AccessError) as error:
        open_talos_client(omni, "")
    assert REFUSAL in str(error.value)


async def test_doctor_reports_it(omni: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TALOSCONFIG", str(omni))
    seen = await talos_probe.probe_credential((), "")
    assert REFUSAL in seen.problem


def test_null_beside_it_is_an_empty_field(omni: Path):
    file = msgspec.yaml.decode(omni.read_bytes())
    file["contexts"]["omni"] |= {"ca": None, "crt": None, "key": None}
    omni.write_bytes(msgspec.yaml.encode(file))
    with pytest.raises(AccessError) as error:
        open_talos_client(omni, "")
    assert REFUSAL in str(error.value)
