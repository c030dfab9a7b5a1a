"""A node's way to the certificate that its kubelet serves with, through our processes as they are run."""

from collections import Counter

import pytest

from libs.testbed.child_process import ChildProcess
from libs.testbed.kubelets import SimKubelet
from libs.testbed.machine_fleet import make_machine
from libs.testbed.signing_requests import CSRS
from tests.bus_actors import wait_until
from tests.integration.service_cluster import MEMORY, ServiceCluster

COUNT = 5


@pytest.fixture
def cluster(simulated_cluster: ServiceCluster) -> ServiceCluster:
    return simulated_cluster


async def start_machine(cluster: ServiceCluster, name: str, ip: str) -> SimKubelet:
    """A machine that answers, and its kubelet, which has not joined."""
    machine = make_machine(name, ip, platform="metal")
    await cluster.put_machines(machine)
    return SimKubelet.of_machine(machine)


def count_approvals(cluster: ServiceCluster, mark: int) -> Counter[tuple[str, bool]]:
    """Requests for approvals, by user and whether they succeeded."""
    done = cluster.server.audit_counts(mark).items()
    wanted = "certificatesigningrequests/approval"
    return Counter({(r.user, r.succeeded): n for r, n in done if r.resource == wanted})


async def test_without_the_controller_no_request_is_looked_at(cluster: ServiceCluster):
    services = await cluster.serve(**MEMORY, flags=["--controllers=cloud-node"])
    report = await services.fetch_page("all-in-one", "/readyz?verbose")
    assert "[+]labeler ok" in report
    assert "csr" not in report
    mark = cluster.server.audit_mark()
    kubelet = await start_machine(cluster, "serving-none", "10.221.3.1")
    await cluster.kubelets.join(kubelet)
    name = await cluster.kubelets.request_certificate(kubelet)
    await wait_until(lambda: _is_initialized(services.children["all-in-one"], kubelet.name), "it is usable")
    asked = (await cluster.kubelets.request("GET", f"{CSRS}/{name}")).body
    assert not asked.get("status", {}).get("conditions")
    ours = {r.resource for r in cluster.server.audit_counts(mark) if r.user.startswith("talos-ccm")}
    assert not any("certificatesigningrequests" in resource for resource in ours)


async def test_requests_alone_leave_nodes_alone(cluster: ServiceCluster):
    services = await cluster.serve(**MEMORY, flags=["--controllers=node-csr-approval"])
    report = await services.fetch_page("all-in-one", "/readyz?verbose")
    assert "[+]csr ok" in report
    assert "labeler" not in report
    kubelet = await start_machine(cluster, "serving-alone", "10.221.4.1")
    await cluster.kubelets.join(kubelet)
    name = await cluster.kubelets.request_certificate(kubelet)
    assert (await cluster.kubelets.wait_for_outcome(name, seconds=30)).certificate
    node = (await cluster.kubelets.request("GET", f"/api/v1/nodes/{kubelet.name}")).body
    assert "providerID" not in node["spec"]


def _is_initialized(child: ChildProcess, node: str) -> bool:
    lines = child.log.read_text().splitlines()
    return any("handled" in line and f"node={node}" in line and "initialized" in line for line in lines)
