"""A process from its first line to its exit status, with and without a world that works."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from libs.common.bus.nats.bus import NatsBus
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.nats_server import NatsServer
from libs.testbed.pki import CertificateAuthority
from libs.testbed.service_start import ROOT
from tests.bus_actors import MAX_BYTES, NODES, wait_until
from tests.integration.processes import AT_ONCE_SECONDS, Process, a_new_interpreter

PROBE = "tests.integration.process_under_test"

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: me, user: {token: secret}}]
"""


def refusal(*arguments: str, module: str = PROBE, **environment: str) -> tuple[int, str]:
    """Exit status and stderr of a process that does not get far."""
    ran = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "KUBECONFIG": "", "NATS_URL": "", **environment},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    return ran.returncode, ran.stderr


async def built(process: Process) -> str:
    """The readiness report once the services are there."""
    report = ""

    async def all_there() -> bool:
        nonlocal report
        report = await process.readyz()
        return "still starting" not in report

    await process.serves()
    await wait_until(all_there, "the services are built")
    return report


def test_a_flag_of_a_service_that_is_not_asked_for_is_told_at_the_start():
    given = ("--bus=memory", "--lifecycle-dry-run", "--kubeconfig=/nowhere", "--cluster-cidr=10.0.0.0/8")
    _, told = refusal(*given, module="services")
    assert "--lifecycle-dry-run has no effect: lifecycle does not run" in told
    assert "--cluster-cidr has no effect: ipam does not run" in told
    assert "GCP spot" not in told
    _, told = refusal(*given, "--controllers=*,cloud-node-lifecycle,nodeipam", module="services")
    assert "has no effect" not in told
    assert "keeps Nodes of preempted GCP spot machines" in told


async def test_without_nats_it_starts_says_why_it_is_not_ready_and_ends_well(tmp_path: Path):
    async with a_new_interpreter(tmp_path, PROBE, "metadata") as process:
        report = await built(process)
        assert report.startswith(
            "[+]process ok\n[-]bus failed: NATS at nats://127.0.0.1:1: connection refused"
        )
        assert report.endswith("[+]metadata ok\nreadyz check failed\n")
        status, _, short = await process.get("/readyz")
        assert (status, "connection refused" in short) == (503, True)
        assert await process.get("/livez") == (200, "text/plain; charset=utf-8", "ok")
        assert await process.get("/healthz") == (200, "text/plain; charset=utf-8", "ok")
        code, seconds = await process.ends_after_sigterm()
        assert process.log_text().count("no connection to NATS") == 1, "an outage is logged when it begins"
        assert "loop=uvloop" in process.log_text()
    assert code == 0
    assert seconds < AT_ONCE_SECONDS


async def test_an_api_server_that_cannot_be_reached_is_not_called_ok(tmp_path: Path):
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    async with a_new_interpreter(tmp_path, "services.watcher", f"--kubeconfig={kubeconfig}") as process:
        report = await built(process)
        assert "[+]kubernetes ok" not in report, "no service has reached it"
        assert "[+]kubernetes-credentials ok" in report


async def test_with_nats_it_becomes_ready_and_an_unready_service_says_why(
    tmp_path: Path, nats_server: NatsServer
):
    bus = await NatsBus.connect((nats_server.url,), service="watcher")
    await bus.provision((NODES,), max_bytes=MAX_BYTES)
    await bus.close()
    async with a_new_interpreter(tmp_path, PROBE, "metadata", NATS_URL=nats_server.url) as process:
        await process.said("metadata ready  after_seconds=")
        assert await process.get("/readyz") == (200, "text/plain; charset=utf-8", "ok")
        assert 'talosccm_nats_connected{service="metadata"} 1.0' in (await process.get("/metrics"))[2]
        assert (await process.ends_after_sigterm())[0] == 0
    arguments = ("metadata", "--unready", "no certificate yet", "--secure-serving=false")
    async with a_new_interpreter(tmp_path, PROBE, *arguments, NATS_URL=nats_server.url) as process:
        await process.serves("http")
        await wait_until(lambda: _unready(process), "the reason is reported")
        assert (await process.ends_after_sigterm())[0] == 0


async def _unready(process: Process) -> bool:
    status, _, report = await process.get("/readyz", scheme="http")
    return status == 503 and "[-]metadata failed: no certificate yet\n" in report and "[+]bus ok" in report


async def test_metrics_come_as_text_and_as_openmetrics(tmp_path: Path):
    async with a_new_interpreter(tmp_path, PROBE, "metadata") as process:
        await process.serves()
        _, plain, text = await process.get("/metrics", Accept="text/plain")
        _, open_metrics, modern = await process.get(
            "/metrics", Accept="application/openmetrics-text; version=1.0.0"
        )
    assert plain.startswith("text/plain")
    assert open_metrics.startswith("application/openmetrics-text")
    assert modern.endswith("# EOF\n")
    assert "talosccm_event_loop_lag_seconds_bucket" in text
    assert "process_resident_memory_bytes" in text
    assert "_created" not in text


@pytest.mark.parametrize(
    ("how", "code", "words", "traceback"),
    [
        ("fails", 1, "the flux is not compensated", True),
        ("ends", 1, "the Lease was lost to node-2", False),
        ("returns", 1, "service ended unexpectedly", False),
        ("misconfigured", 2, "probe: --how=misconfigured cannot work", False),
    ],
)
async def test_a_service_that_ends_by_itself_ends_the_process(
    tmp_path: Path, how: str, code: int, words: str, traceback: bool
):
    async with a_new_interpreter(tmp_path, PROBE, "metadata", "--how", how) as process:
        assert await process.ends() == code
        log = process.log_text()
    assert words in log
    assert ("Traceback" in log) is traceback


async def test_the_services_beside_a_failing_one_are_ended_in_order(tmp_path: Path):
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    async with a_new_interpreter(
        tmp_path, PROBE, "both", "--how=fails", f"--kubeconfig={kubeconfig}"
    ) as process:
        assert await process.ends() == 1
        assert process.log_text().count("service failed, process exits") == 2


async def test_a_second_signal_ends_it_at_once(tmp_path: Path):
    async with a_new_interpreter(tmp_path, PROBE, "metadata", "--how=clings") as process:
        await built(process)
        process.child.process.terminate()
        await process.said("clinging")
        assert "[-]process failed: ending" in await process.readyz(), "not ready while it ends"
        code, seconds = await process.ends_after_sigterm()
    assert code == 128 + 15
    assert seconds < AT_ONCE_SECONDS


async def test_metadata_never_loads_a_kubernetes_client_and_nobody_loads_what_is_off(tmp_path: Path):
    async with a_new_interpreter(tmp_path, PROBE, "metadata", "--how=tells") as process:
        line = ""

        def told() -> bool:
            nonlocal line
            lines = process.log_text().splitlines(keepends=True)
            line = next((line for line in lines if line.startswith("modules: ")), "")
            return line.endswith("\n")  # the end of a long line may come later than its beginning

        await wait_until(told, "all its modules")
        loaded = {name.split(".")[0] for name in line.split()}
        assert not loaded & {"kubernetes_asyncio", "opentelemetry", "requests", "grpclib", "cryptography"}
        assert "libs.common.kube.api" not in line.split()
        assert "libs.common.bus.nats.bus" in line.split()


def test_services_load_libraries_for_certificates_patterns_keys_and_plugins_only_when_they_use_them(
    tmp_path: Path,
):
    (tmp_path / "ca.crt").write_bytes(CertificateAuthority.make().pem)
    (tmp_path / "token").write_text("t")
    loaded = subprocess.check_output(
        [sys.executable, "-c", LIST_MODULES, str(tmp_path)], cwd=ROOT, text=True, timeout=HANG_SECONDS
    ).split()
    assert loaded[0] == "Unreachable"
    assert "services.lifecycle.service" in loaded
    assert not {name.partition(".")[0] for name in loaded} & {
        "cryptography",
        "kubernetes_asyncio",
        "nacl",
        "nkeys",
        "re2",
    }


LIST_MODULES = """
import asyncio, pathlib, sys
import libs.common.bus.nats.bus
import services.watcher.__main__, services.labeler.__main__, services.ipam.__main__
import services.lifecycle.__main__
from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import load_kube_config

async def fail() -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    config = load_kube_config(None, environment, service_account=pathlib.Path(sys.argv[1]))
    api = KubeApi(config, user_agent="t")
    try:
        await api.get_node("web-1")
    except Exception as error:
        print(type(error).__name__)
    await api.close()

asyncio.run(fail())
print(*sys.modules)
"""


# ---- what ends with one clear line and status 2


def test_a_serving_certificate_that_cannot_be_used_is_named(tmp_path: Path):
    nonsense = tmp_path / "tls.crt"
    nonsense.write_text("nonsense")
    code, told = refusal("metadata", f"--tls-cert-file={nonsense}", f"--tls-private-key-file={nonsense}")
    assert code == 2
    assert f"--tls-cert-file {nonsense}" in told
