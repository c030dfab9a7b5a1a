"""`python -m services`: one process, with nothing around it, and with a Lease that it loses."""

import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from libs.common.contract.node import UNINITIALIZED_TAINT
from libs.common.contract.services import LEASE_NAMESPACE, WATCHER_LEASE_NAME
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.clouds.hcloud.server import SimHcloud, SimHcloudServer
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, make_machine
from libs.testbed.service_start import ROOT
from tests.bus_actors import wait_until
from tests.integration.conftest import StartServices
from tests.integration.processes import AT_ONCE_SECONDS, NOWHERE, a_process
from tests.integration.service_cluster import MEMORY, ServiceCluster
from tests.integration.test_process import KUBECONFIG

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/{WATCHER_LEASE_NAME}"


@pytest.mark.parametrize(
    ("nats", "bus_says"),
    [
        (NOWHERE, "[-]bus failed: NATS at nats://127.0.0.1:1: connection refused"),
        ("", "[-]bus failed: stream TALOSCCM does not exist, the watcher provisions it"),
    ],
    ids=["nats", "memory"],
)
async def test_with_nothing_there_it_waits_for_everything_and_names_each(
    tmp_path: Path, nats: str, bus_says: str
):
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    talosconfig = str(tmp_path / "mounted-later")
    chart = "--v=2 --cloud-provider=talos --controllers=cloud-node,node-csr-approval --leader-elect"
    async with a_process(
        tmp_path,
        "services",
        *chart.split(),
        f"--kubeconfig={kubeconfig}",
        NATS_URL=nats,
        TALOSCONFIG=talosconfig,
    ) as process:
        await process.serves()

        async def all_named() -> bool:
            report = await process.readyz()
            return all(
                part in report
                for part in (
                    bus_says,
                    "[-]watcher failed: ",
                    "https://127.0.0.1:1",
                    "[-]metadata failed: ",
                    talosconfig,
                    "[-]labeler failed: ",
                    "[-]csr failed: ",
                )
            )

        await wait_until(all_named, "each reason is reported")
        code, seconds = await process.ends_after_sigterm()
    assert code == 0, process.log_text()
    assert seconds < AT_ONCE_SECONDS


def test_without_talos_it_refuses_to_start_unless_it_is_given_the_service_networks():
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "services", "--bus=memory", "--without-talos"),
            "--controllers=node-csr-approval",
        ],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANG_SECONDS,
    )  # fmt: skip
    assert ran.returncode == 2
    assert ran.stderr.startswith("python -m services: --without-talos needs --service-cluster-ip-range:")


def test_who_needs_no_nats_does_not_load_its_library():
    code = "import runpy, sys; runpy.run_module('services'); print(*sys.modules)"
    loaded = subprocess.check_output(
        [sys.executable, "-c", code], cwd=ROOT, text=True, timeout=HANG_SECONDS
    ).split()
    assert "libs.common.bus.memory.bus" in loaded
    assert not {name for name in loaded if name.partition(".")[0] == "nats"}


async def test_a_second_replica_on_its_own_memory_stands_by_ready_and_goes_on_when_the_first_ends(
    start_services: StartServices, kubelets: KubeletFleet, machines: MachineFleet
):
    before, after = (
        make_machine(f"{when}-takeover.example.com", f"10.210.0.{n}", platform="metal")
        for n, when in ((3, "before"), (4, "after"))
    )
    await machines.put_machines(before, after)
    first = await start_services("first", **MEMORY)
    second = await start_services("second", **MEMORY)
    assert "standing by, another replica leads" in second.children["all-in-one"].log.read_text()
    await kubelets.join(SimKubelet.of_machine(before))
    await wait_until(lambda: _initialized(kubelets, before.name), "initialized by the first")
    await first.children["all-in-one"].stop(30)
    await kubelets.join(SimKubelet.of_machine(after))
    await wait_until(lambda: _initialized(kubelets, after.name), "initialized by the second")
    assert "[+]labeler ok" in await second.fetch_page("all-in-one", "/readyz?verbose")
    for machine in (before, after):
        await kubelets.delete_node(machine.name)
        await machines.delete_machines(machine.id)


async def _initialized(kubelets: KubeletFleet, name: str) -> bool:
    node = (await kubelets.request("GET", f"/api/v1/nodes/{name}")).body
    return UNINITIALIZED_TAINT not in {taint["key"] for taint in node["spec"].get("taints", [])}


async def test_observe_only_writes_nothing_to_kubernetes_and_logs_what_it_would_have_written(
    start_services: StartServices,
    control_plane: ControlPlane,
    kubelets: KubeletFleet,
    machines: MachineFleet,
):
    machine = make_machine("observed-only.example.com", "10.210.0.1", platform="metal")
    await machines.put_machines(machine)
    since = control_plane.audit_mark()
    services = await start_services(all_in_one=True, flags=["--observe-only", "--v=4"])
    await kubelets.join(SimKubelet.of_machine(machine))
    child = services.children["all-in-one"]
    await wait_until(lambda: _decided(child.log, machine.name), "the labeler has decided")
    await child.stop(30)  # whose end must write nothing either: no Lease is released
    verbs = Counter(
        {r.verb: n for r, n in control_plane.audit_counts(since).items() if r.user.startswith("talos-ccm")}
    )
    await kubelets.delete_node(machine.name)
    await machines.delete_machines(machine.id)
    assert set(verbs) <= {"get", "list", "watch"}
    assert verbs["list"] >= 1


def _decided(log: Path, node: str) -> bool:
    return any(
        "labeler  handled" in line
        and f"node={node}" in line
        and "would-initialize" in line
        and "changes=" in line
        for line in log.read_text().splitlines()
    )


async def test_one_process_asks_the_clouds_of_two_accounts_and_names_a_missing_credential(
    simulated_cluster: ServiceCluster, tmp_path: Path
):
    async with SimHcloudServer.start(SimHcloud()) as cloud:
        (tmp_path / "prod").write_text("a" * 64)
        server = cloud.cloud.add_project("a" * 64).add_server("web-1")
        node = {"metadata": {"name": "web-1"}, "spec": {"providerID": f"hcloud://{server}"}}
        body = {"apiVersion": "v1", "kind": "Node", **node}
        await simulated_cluster.kubelets.request("POST", "/api/v1/nodes", body=body)
        flags = [
            *("--cloud-account=hcloud/prod", "--cloud-account=hcloud/staging"),
            *(f"--cloud-credential-file={tmp_path}/{{account}}", f"--cloud-endpoint={cloud.endpoint}"),
        ]
        services = await simulated_cluster.serve(**MEMORY, flags=flags)

        async def shows(page: str, text: str) -> bool:
            return text in await services.fetch_page("all-in-one", page)

        seen = 'talosccm_cloud_instances{account="prod",state="exists"} 1.0'
        await wait_until(partial(shows, "/metrics", seen), "prod has seen its server")
        reason = f"cloud account staging: credential file {tmp_path}/staging: No such file"
        await wait_until(partial(shows, "/readyz?verbose", f"[-]cloud-staging failed: {reason}"), reason)
        assert await shows("/readyz?verbose", "[+]cloud-prod ok")
