"""The interface between a laptop and a pod: which pod `talos-ccm` picks, and what it runs there."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web

from cli.doctor.pod_probe import probe_in_pod
from cli.inside.flow_client import FlowQuery, fetch_certificates, query_flow
from cli.inside.flow_snapshot import FlowObject
from libs.common.contract.services import SERVICES
from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import load_kube_config
from tests.builders import make_node
from tests.contract.interface_snapshot import assert_unchanged
from tests.doctor_cases import make_installation, make_pod

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: here
clusters: [{{name: here, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
contexts: [{{name: here, context: {{cluster: here, user: here}}}}]
users: [{{name: here, user: {{token: secret}}}}]
"""
CHART = {
    "app.kubernetes.io/name": "talos-cloud-controller-manager",
    "app.kubernetes.io/instance": "ccm",
}


class Requests(NamedTuple):
    """What an API server was asked for, and how to reach it."""

    kubeconfig: Path
    listed: list[dict[str, str]]
    run: list[dict[str, Any]]

    async def pods(self, request: web.Request) -> web.Response:
        """List one ready pod of each service."""
        asked = {"path": request.path, "labels": request.query["labelSelector"]}
        if asked not in self.listed:
            self.listed.append(asked)
        items = [
            {
                "metadata": {
                    "name": f"ccm-{each.service}-1",
                    "labels": CHART | {"app.kubernetes.io/component": each.service},
                },
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            }
            for each in SERVICES
        ]
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    async def exec(self, request: web.Request) -> web.Response:
        """Refuse to run the command, and record it."""
        told = {
            "path": request.path,
            "container": request.query["container"],
            "command": request.query.getall("command"),
        }
        if told not in self.run:  # a refused request may be repeated
            self.run.append(told)
        return web.json_response({"kind": "Status", "reason": "Forbidden", "message": "no"}, status=403)


@pytest.fixture
async def requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Requests]:
    monkeypatch.delenv("NATS_URL", raising=False)
    made = Requests(tmp_path / "config", [], [])
    application = web.Application()
    application.router.add_get("/api/v1/namespaces/{namespace}/pods", made.pods)
    application.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}/exec", made.exec)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.kubeconfig.write_text(KUBECONFIG.format(port=runner.addresses[0][1]))
    yield made
    await runner.cleanup()


async def test_the_commands_that_run_in_a_pod_are_unchanged(requests: Requests):
    source = FlowQuery(
        kubeconfig=requests.kubeconfig, objects=(FlowObject("node", "web-1"), FlowObject("csr", "csr-1"))
    )
    await query_flow(source)
    await fetch_certificates(source)
    kube = KubeApi(load_kube_config(requests.kubeconfig, {}), user_agent="test")
    try:
        installation = make_installation(metadata={"args": ("--talos-endpoints=10.0.0.1",)})
        await probe_in_pod(kube, installation, (make_pod("metadata"),), (make_node("web-1"),))
    finally:
        await kube.close()
    assert len(requests.run) == 3
    assert_unchanged("inside-commands", {"lists pods": requests.listed, "runs": requests.run})
