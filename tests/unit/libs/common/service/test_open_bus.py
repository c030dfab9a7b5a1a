"""The bus of a process: wrong settings are rejected at once, and a leader that is cut off steps down."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.bus.protocol import ServerLiveness
from libs.common.kube.lease import Lease, read_lease
from libs.common.service.bus_reachability import (
    HOLDER_READS_REPORTS_ANNOTATION,
    STANDBY_REPORT_ANNOTATION,
    BusReachability,
)
from libs.common.service.open_bus import validate_bus
from libs.common.service.service import ServiceDefinition
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import SettingsError
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.pki import CertificateAuthority
from services.labeler.service import LABELER_DEFINITION
from services.metadata.service import METADATA_DEFINITION
from tests.builders import NOW
from tests.in_memory_api import make_lease

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


def make_reachability(
    silent: float = 0.0, answering: float = 100.0, leader: float = 0.0, identity: str = "a"
) -> BusReachability:
    """A replica whose bus has been silent, and had answered, and had a silent leader for these seconds."""
    return BusReachability(
        identity=identity,
        contact=lambda: ServerLiveness(silent_seconds=silent, responsive_seconds=answering),
        leader_silence=lambda: leader,
        candidate_seconds=10.0,
        leader_seconds=15.0,
    )


def held_by(holder: str, *, reads_reports: bool = True, report: str = "") -> Lease:
    annotations = {STANDBY_REPORT_ANNOTATION: report} if report else {}
    if reads_reports:
        annotations[HOLDER_READS_REPORTS_ANNOTATION] = holder
    return make_lease(holder, annotations=annotations)


def test_a_new_holder_gets_no_report_for_a_while_and_then_one_every_few_seconds():
    standby, lease = make_reachability(leader=17.0), held_by("b")
    standby.observe(make_lease(), lease, 100.0)
    reported_at = [at for at in range(100, 130) if standby.plan_report(lease, float(at), NOW)]
    assert reported_at == [115, 120, 125]
    problem = standby.describe_problem(is_leading=False)
    assert problem.startswith("b holds the Lease and has published nothing for 17 s")
    successor = held_by("c")
    standby.observe(lease, successor, 130.0)
    assert standby.plan_report(successor, 144.0, NOW) is None
    assert standby.describe_problem(is_leading=False) == ""


@pytest.mark.parametrize(
    ("silence", "lease"),
    [
        ({}, held_by("b")),
        ({"leader": 14.0}, held_by("b")),
        ({"leader": 99.0, "answering": 14.0}, held_by("b")),
        ({"leader": 99.0, "silent": 11.0}, held_by("b")),
        ({"leader": 99.0}, held_by("reference", reads_reports=False)),
        ({"leader": 99.0}, held_by("a")),
        ({"leader": 99.0}, held_by("")),
    ],
    ids=[
        "the leader publishes",
        "a short silence",
        "the bus only just answers",
        "the bus is silent",
        "another program leads",
        "it leads itself",
        "there is no leader",
    ],
)
def test_a_standby_reports_nothing(silence: dict[str, Any], lease: Lease):
    assert make_reachability(**silence).plan_report(lease, 1000.0, NOW) is None


def test_the_reference_that_keeps_annotations_of_others_gets_no_report():
    lease = make_lease("reference", annotations={HOLDER_READS_REPORTS_ANNOTATION: "b"})
    assert make_reachability(leader=99.0).plan_report(lease, 1000.0, NOW) is None


def report_to(lease: Lease, seconds: int) -> Lease:
    """Return the Lease with a report of a standby, which differs with the seconds."""
    document = make_reachability(leader=99.0, identity="standby").plan_report(
        lease, 1000.0, NOW + timedelta(seconds=seconds)
    )
    return read_lease(msgspec.json.encode(document))


@pytest.mark.parametrize(
    ("silent", "reported_ago", "steps_down"),
    [(16.0, 0.0, True), (15.0, 15.0, True), (14.0, 0.0, False), (0.0, 0.0, False), (1000.0, 16.0, False)],
    ids=["cut off", "just yet", "a short gap", "it answers", "an old report"],
)
def test_a_leader_steps_down_if_it_is_cut_off_and_a_standby_is_not(
    silent: float, reported_ago: float, *, steps_down: bool
):
    leader, lease = make_reachability(silent=silent), held_by("a")
    leader.observe(make_lease(), lease, 100.0)
    assert not leader.must_step_down(200.0), "without a report"
    leader.observe(lease, report_to(lease, 1), 200.0)
    assert leader.must_step_down(200.0 + reported_ago) is steps_down


def test_a_report_counts_only_if_the_holder_sees_it_appear_in_its_own_term():
    before, own = report_to(held_by("b"), 1), report_to(held_by("a"), 2)
    leader = make_reachability(silent=99.0)
    leader.observe(make_lease(), before, 100.0)
    leader.observe(before, report_to(before, 3), 101.0)
    leader.observe(before, own, 102.0)
    assert not leader.must_step_down(102.0), "reports to b, and one that was there before"
    leader.observe(own, own, 103.0)
    assert not leader.must_step_down(103.0)
    leader.observe(own, report_to(own, 4), 104.0)
    assert leader.must_step_down(104.0)


def test_a_replica_without_the_bus_says_what_that_means_for_the_lease():
    cut_off = make_reachability(silent=11.0)
    assert not cut_off.may_lead()
    assert "releases the Lease when a standby reaches NATS" in cut_off.describe_problem(is_leading=True)
    assert "does not acquire the Lease" in cut_off.describe_problem(is_leading=False)
    assert make_reachability(silent=10.0).may_lead()
