"""`talos-ccm explain service`: what an operator reads about a load balancer, beside the running process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from cli.__main__ import main
from libs.common.contract.services import LEASE_NAMESPACE
from libs.testbed.sim_apiserver.server import SimApiServer
from tests.clouds.balancer_actors import CLASS, SERVICES, BalancerCluster

OTHER_TOKEN = "b" * 64
MERGE = "application/merge-patch+json"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{LEASE_NAMESPACE}/deployments"

SAID_ABSENT = "Service default/absent not found: set its namespace with --namespace"


class Shell(NamedTuple):
    """The cluster, and a kubeconfig for the command."""

    cluster: BalancerCluster
    kubeconfig: Path

    async def explain(self, *arguments: str) -> tuple[int, str]:
        """Exit status and output."""
        words = ["explain", "service", *arguments, "--kubeconfig", str(self.kubeconfig)]
        result = await asyncio.to_thread(CliRunner().invoke, main, words)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout or result.stderr

    async def deploy(self, *flags: str) -> None:
        """A Deployment with the flags of the process, as the chart makes it."""
        container = {
            "name": "cloud",
            "image": "talos-ccm",
            "command": ["python", "-m", "services.cloud"],
            "args": ["--controllers=service-lb-controller", "--cloud-account=hcloud/prod", *flags],
        }
        body = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "ccm-cloud-prod", "namespace": LEASE_NAMESPACE},
            "spec": {"replicas": 1, "template": {"spec": {"containers": [container]}}},
        }
        created = await self.cluster.admin.request("POST", DEPLOYMENTS, body=body)
        assert created.status == 201, created
        ready = {"status": {"readyReplicas": 1}}
        path = f"{DEPLOYMENTS}/ccm-cloud-prod/status"
        patched = await self.cluster.admin.request("PATCH", path, body=ready, content_type=MERGE)
        assert patched.status == 200, patched


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Shell]:
    async with (
        SimApiServer.start(tmp_path / "kubernetes") as api_server,
        BalancerCluster.open(api_server, tmp_path) as cluster,
        cluster.run_watcher(),
    ):
        yield Shell(cluster, api_server.kubeconfig("admin"))


async def test_a_service_with_its_balancer_account_and_targets(shell: Shell):
    cluster = shell.cluster
    await shell.deploy(f"--load-balancer-class=prod={CLASS}")
    await cluster.join("web-1")
    body = {"metadata": {"name": "metal-1"}, "spec": {"providerID": "hrobot://7"}}
    await cluster.admin.request("POST", "/api/v1/nodes", body=body)
    async with cluster.run_account():
        await cluster.create_service("web")
        await cluster.create_service("bad", annotations={"load-balancer.hetzner.cloud/protocol": "udp"})
        await cluster.wait_for_address("web")
        await cluster.wait_for_event("web", "EnsuredLoadBalancer")
        await cluster.wait_for_event("bad", "SyncLoadBalancerFailed")
        status, text = await shell.explain("web")
        invalid = await shell.explain("default/bad")
        as_json = await shell.explain("bad", "-o", "json")
    (balancer,) = cluster.balancers
    assert status == 0, text
    assert text.startswith("default/web is healthy")
    assert f"Load balancer {balancer['id']}" in text
    assert "prod (hcloud)" in text
    assert "1 of 2 Nodes" in text
    assert "metal-1: no server of this cloud" in text
    assert (invalid[0], "bad is blocked" in invalid[1]) == (1, True), invalid
    assert 'load-balancer.hetzner.cloud/protocol: "udp" is not one of tcp, http, https' in invalid[1]
    assert '"state": "stuck"' in as_json[1]
    absent = await shell.explain("absent")
    assert (absent[0], SAID_ABSENT in absent[1]) == (2, True), absent


async def test_a_lost_account_keeps_the_service_and_the_way_out_is_named(shell: Shell):
    """Its process runs again with a token of another project, and obeys the printed command."""
    cluster = shell.cluster
    async with cluster.run_account():
        await cluster.create_service("web")
        await cluster.wait_for_address("web")
    await cluster.delete_service("web")
    status, text = await shell.explain("web")
    (balancer,) = cluster.balancers
    command = f"annotate service web service.cloudprovider.kubernetes.io/talos-ccm-abandon={balancer['id']}"
    assert status == 1
    assert command in text
    assert "It costs money" in text
    key, _, value = command.rpartition(" ")[2].partition("=")
    body = {"metadata": {"annotations": {key: value}}}
    await cluster.admin.request("PATCH", f"{SERVICES}/web", body=body, content_type=MERGE)
    cluster.cloud.cloud.add_project(OTHER_TOKEN).add_network()
    cluster.token_file.write_text(OTHER_TOKEN)
    async with cluster.run_account():
        await cluster.wait_for_event("web", "LoadBalancerAbandoned")
    assert len(cluster.balancers) == 1
