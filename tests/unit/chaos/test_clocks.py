"""The wall clock of one process jumps; a credential in a log is found in every form."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from libs.common.bus.nats.nats_access import generate_seed, public_key_of
from libs.testbed.patched_process import PROCESS_NAME
from libs.testbed.pki import CertificateAuthority, TalosPki
from libs.testbed.service_start import ROOT
from tests.chaos.clocks import CLOCK_MODULE, build_clock_environment, set_clock_offset
from tests.chaos.credentials import find_leaks, list_secret_texts

# Prints, for each line that it reads, how far its clocks are from that line's time.
PROGRAM = """
import sys, time
from tests.chaos.clocks import install
install()
from libs.common.clocks import utc_now
for line in sys.stdin:
    clocks = utc_now().timestamp(), time.time(), time.time_ns() / 1e9
    print(*(clock - float(line) for clock in clocks), flush=True)
"""
READS = re.compile(r"\bdatetime\.(?:now|utcnow|today)\(|\btime\.time(?:_ns)?\b")


def list_offsets(child: "subprocess.Popen[str]", now: float) -> list[int]:
    """How far all clocks of the program are from `now`, rounded to hours, in seconds."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{now}\n")
    child.stdin.flush()
    return [3600 * round(float(word) / 3600) for word in child.stdout.readline().split()]


def test_the_clock_of_one_process_jumps_both_ways_and_keeps_its_offset_over_a_restart(tmp_path: Path):
    environment = os.environ | dict(build_clock_environment(tmp_path))
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=environment | {PROCESS_NAME: name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("csr", "ipam")
    ]
    now = (tmp_path / "clocks").stat().st_mtime
    with started[0] as csr, started[1] as ipam:
        assert list_offsets(csr, now) == list_offsets(ipam, now) == [0, 0, 0]
        for seconds in (3600, -3600, 0, 3600):
            set_clock_offset(tmp_path, "csr", seconds)
            assert list_offsets(csr, now) == [seconds] * 3
            assert list_offsets(ipam, now) == [0, 0, 0]
    again = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment | {PROCESS_NAME: "csr"},
        input=f"{now}\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert [round(float(word) / 3600) for word in again.stdout.split()] == [1, 1, 1]


def test_one_module_of_the_services_reads_the_wall_clock():
    files = [
        path
        for folder in ("libs/common", "libs/talos", "services")
        for path in (ROOT / folder).rglob("*.py")
        if READS.search(path.read_text())
    ]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files}
    # `tests/chaos/clocks.py` replaces these functions of `time` for every module.
    of_module_time = {"libs.common.bus.consumer_middleware", "libs.common.observability.tracing"}
    assert modules - of_module_time == {CLOCK_MODULE}


# ---- credentials


PAIR = CertificateAuthority.make().issue_client(common_name="csr")
SEED = generate_seed()
CLAIMS, SIGNATURE = b"eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJsYWJlbGVyIn0.", b"c2lnbmF0dXJl-b2YgdGhlX3Rva2Vu"


@pytest.mark.parametrize(
    ("file", "secret", "public"),
    [
        (PAIR.key, PAIR.key, PAIR.certificate),
        (SEED, SEED.strip(), public_key_of(SEED).encode()),
        (CLAIMS + SIGNATURE, CLAIMS + SIGNATURE, CLAIMS),
    ],
    ids=["key", "seed of a NATS key", "token"],
)
def test_a_credential_is_found_in_a_log_and_its_public_part_is_no_secret(
    file: bytes, secret: bytes, public: bytes
):
    assert find_leaks([("key", file)], {"csr.log": b"x=" + secret}) == [("csr.log", "key")]
    assert not find_leaks([("key", file)], {"csr.log": public})


def test_the_key_of_a_talosconfig_is_found_as_written_and_decoded(tmp_path: Path):
    text = TalosPki(tmp_path, ["localhost"]).talosconfig(["127.0.0.1:1"]).encode()
    found = list(list_secret_texts(text))
    assert len(found) >= 2
    for secret in found:
        assert find_leaks(
            [("talosconfig", text)], {"metadata.log": b"key=" + secret, "csr.log": b"fine"}
        ) == [("metadata.log", "talosconfig")]
