"""The parts of a process: readiness, the watch over the loop, the serving certificate, endings, observers."""

import asyncio
import logging
import ssl
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from libs.common.bus.protocol import BusError, StreamFull, WrongLastSequence
from libs.common.observability import metrics, telemetry
from libs.common.service.event_loop import EventLoopMonitor
from libs.common.service.health import Readiness, format_report
from libs.common.service.open_bus import bus_hooks, observe_kubernetes, subject_class
from libs.common.service.service_supervisor import close_at_exit, run_in_background
from libs.common.service.serving_certificate import ServingCertificate
from libs.common.settings.read_settings import SettingsError
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.pki import CertificateAuthority
from tests.architecture.sources import ROOT
from tests.bus_actors import run_during, wait_until
from tests.tcp_server import serve_tcp


def test_a_report_names_every_check_and_every_reason():
    assert format_report({"process": (), "bus": ("away", "full")}) == (
        "[+]process ok\n[-]bus failed: away\n[-]bus failed: full\nreadyz check failed\n"
    )
    assert format_report({"process": ()}).endswith("readyz check passed\n")


def test_nobody_is_ready_before_the_start_and_while_ending():
    readiness = Readiness(lambda: 0.0)
    readiness.add_check("bus", tuple)
    assert any(readiness.problems().values())
    readiness.mark_started()
    assert not any(readiness.problems().values())
    readiness.mark_stopping()
    assert readiness.problems()["process"] == ("ending",)


async def test_readiness_is_reported_at_once_and_its_loss_when_it_lasts(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    now, looks = [0.0], [0.0]
    problems: list[tuple[str, ...]] = [("away",)]

    def clock() -> float:
        looks.append(now[0])
        return now[0]

    def looked_at_since(when: float) -> bool:
        return looks.count(when) >= 4

    readiness = Readiness(clock)
    readiness.add_check("bus", lambda: problems[0])
    readiness.mark_started()

    def logged() -> list[str]:
        return [record.message for record in caplog.records if record.name == "libs.common.service.health"]

    async with run_during(readiness.log_changes()):
        now[0] = 5.0
        await wait_until(lambda: logged() == ["not ready"])
        problems[0] = ()
        await wait_until(lambda: logged() == ["not ready", "ready"])
        problems[0] = ("away",)
        now[0] = 9.0
        await wait_until(lambda: looked_at_since(9.0))
        now[0] = 13.9
        await wait_until(lambda: looked_at_since(13.9))
        assert logged() == ["not ready", "ready"], "a loss that does not last is no news"
        now[0] = 14.1
        await wait_until(lambda: logged() == ["not ready", "ready", "not ready"])
    assert caplog.records[0].reasons == "bus: away"  # type: ignore[attr-defined]


async def test_a_stuck_loop_is_reported_with_the_line_that_holds_it_up(caplog: pytest.LogCaptureFixture):
    def has_report() -> bool:
        blocked = [record for record in caplog.records if record.message == "event loop blocked"]
        return any("time.sleep(0.05)" in record.stack for record in blocked)  # type: ignore[attr-defined]

    async with run_during(EventLoopMonitor(stuck_seconds=0.1).run()):
        await asyncio.sleep(0)
        until = time.monotonic() + HANG_SECONDS
        while not has_report() and time.monotonic() < until:
            time.sleep(0.05)  # noqa: ASYNC251 - this is the defect that it finds
    assert has_report()


async def test_the_lag_of_the_loop_is_measured():
    def beats() -> float:
        return metrics.REGISTRY.get_sample_value("talosccm_event_loop_lag_seconds_count") or 0.0

    before = beats()
    async with run_during(EventLoopMonitor().run()):
        await wait_until(lambda: beats() > before)


# ---- certificates


async def test_without_files_a_certificate_is_made_that_serves(tmp_path: Path):
    certificate = ServingCertificate(None, None, now=datetime.now(UTC))
    served = await served_certificate(certificate)
    assert served.not_valid_after_utc > datetime.now(UTC) + timedelta(days=365)


async def test_files_that_change_are_taken_up_and_broken_ones_are_not(tmp_path: Path):
    authority = CertificateAuthority.make()
    first, second = (authority.issue_server(["localhost"]) for _ in range(2))
    certificate_file, key_file = tmp_path / "tls.crt", tmp_path / "tls.key"

    def mount(certificate: bytes, key: bytes) -> None:
        for file, content in ((certificate_file, certificate), (key_file, key)):
            fresh = file.with_suffix(".new")
            fresh.write_bytes(content)
            fresh.replace(file)

    mount(first.certificate, first.key)
    certificate = ServingCertificate(certificate_file, key_file, now=datetime.now(UTC))
    before = await served_certificate(certificate)
    mount(second.certificate, second.key)
    certificate.refresh()
    after = await served_certificate(certificate)
    assert before.serial_number != after.serial_number
    for broken in ((b"nonsense", b"nonsense"), (first.certificate, second.key), (first.certificate, b"")):
        mount(*broken)
        with pytest.raises(SettingsError, match=f"--tls-cert-file {certificate_file}"):
            certificate.refresh()
        assert (await served_certificate(certificate)).serial_number == after.serial_number


async def served_certificate(certificate: ServingCertificate) -> x509.Certificate:
    """What a client is shown."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

    trusting = ssl._create_unverified_context()
    async with serve_tcp(hang_up, tls=certificate.context) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await writer.wait_closed()
    return x509.load_der_x509_certificate(shown)


# ---- endings


async def test_what_was_opened_last_ends_first_and_a_failing_end_stops_nobody(
    caplog: pytest.LogCaptureFixture,
):
    ended: list[str] = []

    async def end(name: str) -> None:
        ended.append(name)
        if name == "broken":
            raise OSError("gone")

    async with AsyncExitStack() as endings:
        for name in ("first", "broken", "last"):
            close_at_exit(endings, name, lambda name=name: end(name))  # type: ignore[misc]
    assert ended == ["last", "broken", "first"]
    (record,) = caplog.records
    assert (record.message, record.part) == ("shutdown of part failed", "broken")  # type: ignore[attr-defined]


async def test_work_in_the_background_that_fails_is_reported(caplog: pytest.LogCaptureFixture):
    async def work() -> None:
        raise ValueError("odd")

    async with AsyncExitStack() as endings:
        run_in_background(endings, work())
        await wait_until(lambda: "background task failed" in caplog.text)
    assert "ValueError: odd" in caplog.text


# ---- observers


@given(st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True))
def test_no_name_becomes_a_label(name: str):
    assert subject_class(f"talosccm.v1.flow.observed.node.{name}") == "flow.observed.node"
    assert subject_class(f"talosccm.v1.decided.labeler.node.{name}") == "decided.labeler.node"
    assert subject_class("talosccm.v1.flow.snapshot") == "flow.snapshot"
    assert subject_class("talosccm.v1.pulse.watcher.host_1") == "pulse.watcher"


def test_a_bus_and_an_api_server_are_counted():
    def value(name: str, **labels: str) -> float | None:
        return metrics.REGISTRY.get_sample_value(name, labels)

    hooks = bus_hooks(["gardener", "cook"])
    assert value("talosccm_nats_connected", service="gardener") == 0
    hooks.connected()
    assert value("talosccm_nats_connected", service="cook") == 1
    hooks.disconnected("gone")
    assert value("talosccm_nats_connected", service="cook") == 0
    subject = "talosccm.v1.dead.gardener.node.web-1"
    hooks.published(subject)
    for error in (StreamFull("x"), WrongLastSequence("x"), BusError("x")):
        hooks.publish_failed(subject, error)
    for outcome in ("published", "stream_full", "superseded", "failed"):
        assert value("talosccm_published_total", event="dead.gardener.node", outcome=outcome) == 1
    observe_kubernetes("patch", "nodes/odd", 0, 0.2)
    observe_kubernetes("watch", "nodes/odd", 200, 60.0)
    requests = {"service": "none", "verb": "patch", "resource": "nodes/odd", "status": "none"}
    assert value("talosccm_kubernetes_requests_total", **requests) == 1
    assert (
        value("talosccm_kubernetes_request_duration_seconds_count", verb="watch", resource="nodes/odd")
        is None
    )


def test_what_was_loaded_is_never_looked_through_and_a_thousand_new_objects_are_not_either():
    script = (
        "import gc; from libs.common.service.event_loop import reduce_gc_frequency\n"
        "reduce_gc_frequency(); assert gc.get_freeze_count() > 1_000\n"
        "begun = []; gc.callbacks.append(lambda phase, info: begun.append(phase))\n"
        "kept = [[number] for number in range(10_000)]; assert not begun\n"
        "kept += [[number] for number in range(20_000)]; assert begun and gc.isenabled()"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=HANG_SECONDS)


def test_writes_for_nodes_are_counted_by_service_once_the_api_server_took_them():
    def writes(resource: str) -> float | None:
        return metrics.REGISTRY.get_sample_value(
            "talosccm_node_writes_total", {"service": "gardener", "resource": resource}
        )

    with telemetry.log_fields(service="gardener"):
        for verb, resource, status in (
            ("patch", "nodes", 200),
            ("patch", "nodes", 422),
            ("patch", "nodes", 0),
            ("get", "nodes", 200),
            ("create", "events", 201),
            ("update", "leases", 200),
        ):
            observe_kubernetes(verb, resource, status, 0.01)
    assert writes("nodes") == 1
    assert writes("events") == 1
    assert writes("leases") is None


def test_a_gauge_that_only_one_process_knows_has_no_series_in_the_others():
    def shown() -> list[str]:
        text = metrics.exposition("")[0].decode()
        return [line for line in text.splitlines() if line.startswith("talosccm_queue_redelivered")]

    metrics.QUEUE_REDELIVERED.set_series({("labeler-nodes",): 2, ("csr-requests",): 0})
    assert shown() == [
        'talosccm_queue_redelivered{durable="labeler-nodes"} 2.0',
        'talosccm_queue_redelivered{durable="csr-requests"} 0.0',
    ]
    metrics.QUEUE_REDELIVERED.set_series({})
    assert shown() == []
