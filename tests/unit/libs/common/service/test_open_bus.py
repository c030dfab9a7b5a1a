"""The bus of a process: wrong settings are rejected before the first connection."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from libs.common.service.open_bus import validate_bus
from libs.common.service.service import ServiceDefinition
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import SettingsError
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.pki import CertificateAuthority
from services.labeler.service import LABELER_DEFINITION
from services.metadata.service import METADATA_DEFINITION

ALONE: list[ServiceDefinition[Any]] = [LABELER_DEFINITION]


def refusal(settings: ProcessSettings) -> str:
    with pytest.raises(SettingsError) as refused:
        validate_bus(ALONE, settings)
    return str(refused.value)


def test_a_file_for_nats_that_is_not_there_is_named_together_with_its_flag(tmp_path: Path):
    missing = tmp_path / "missing"
    assert refusal(ProcessSettings(nats_ca_file=missing)) == (
        f"--nats-ca-file {missing}: no such file or directory"
    )
    assert refusal(ProcessSettings(nats_nkey_file=missing)) == (
        f"--nats-nkey-file {missing}: no such file or directory"
    )


def test_a_file_for_nats_that_holds_something_else_is_named_together_with_its_flag(tmp_path: Path):
    other = tmp_path / "other"
    other.write_text("nothing of use")
    assert refusal(ProcessSettings(nats_ca_file=other)).startswith(f"--nats-ca-file {other}: not usable")
    assert refusal(ProcessSettings(nats_nkey_file=other)).startswith(f"--nats-nkey-file {other}: not usable")


def test_files_that_the_memory_bus_does_not_read_are_not_judged(tmp_path: Path):
    settings = ProcessSettings(bus="memory", nats_ca_file=tmp_path / "missing")
    validate_bus([LABELER_DEFINITION, METADATA_DEFINITION], settings)


def test_a_service_alone_cannot_keep_its_messages_to_itself():
    assert "works only with `python -m services`" in refusal(ProcessSettings(bus="memory"))


_COUNT = """
import gc, ssl
import services.__main__, libs.common.kube.api
made = [each for each in gc.get_objects() if isinstance(each, ssl.SSLContext)]
after = ssl.create_default_context()
print(bool(made), *(each.cert_store_stats()["x509"] for each in [*made, after]))
"""


def test_contexts_that_a_library_makes_at_its_import_load_none_and_later_ones_do(tmp_path: Path):
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(CertificateAuthority.make(common_name="system").pem)
    ran = subprocess.run(
        [sys.executable, "-c", _COUNT],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_SECONDS,
        env={**os.environ, "SSL_CERT_FILE": str(authorities), "SSL_CERT_DIR": str(tmp_path)},
    )
    assert ran.stdout.split() == ["True", "0", "0", "1"]
