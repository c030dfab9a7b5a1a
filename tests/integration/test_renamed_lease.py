"""status, explain and doctor find a Lease with another name in another namespace, on a real control plane."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from libs.common.kube.lease import new_lease_document
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import make_machine
from tests.integration.operator_shell import talos_ccm

NAMESPACE, LEASES, NAME = "renamed-ccm", "renamed-leases", "renamed"
NODE = "renamed-lease-1"
TOLD = (f"--leader-elect-resource-name={NAME}", f"--leader-elect-resource-namespace={LEASES}")
PATH = f"/apis/coordination.k8s.io/v1/namespaces/{LEASES}/leases"
LABELS = {"app.kubernetes.io/instance": "ccm", "app.kubernetes.io/component": "watcher"}
# No replicas: it is its words that count, and a Lease outlives every pod.
WATCHER = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "ccm-watcher", "labels": LABELS},
    "spec": {
        "replicas": 0,
        "selector": {"matchLabels": LABELS},
        "template": {
            "metadata": {"labels": LABELS},
            "spec": {
                "containers": [
                    {
                        "name": "watcher",
                        "image": "registry.example.com/ccm:v1",
                        "command": ["python", "-m", "services.watcher"],
                        "args": list(TOLD),
                    }
                ]
            },
        },
    },
}


@pytest.fixture
async def renamed(kubelets: KubeletFleet) -> AsyncIterator[None]:
    """The watcher's Deployment, its Lease with a holder, and a Node that waits."""
    lease = new_lease_document(LEASES, NAME, "watcher-7", 3600, datetime.now(UTC))
    deployments = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    for name in (NAMESPACE, LEASES):
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await kubelets.request("POST", "/api/v1/namespaces", body=namespace)
    assert (await kubelets.request("POST", deployments, body=WATCHER)).status == 201
    assert (await kubelets.request("POST", PATH, body=lease)).status == 201
    await kubelets.join(SimKubelet.of_machine(make_machine(NODE, "10.249.0.1")))
    yield
    await kubelets.delete_node(NODE)
    for path in (f"{deployments}/ccm-watcher", f"{PATH}/{NAME}"):
        await kubelets.request("DELETE", path)


async def told(home: Path, server: ControlPlane, *words: str) -> Any:
    """What a command says to programs."""
    said = await talos_ccm(home, server, *words, f"--namespace={NAMESPACE}", "-o", "json")
    assert said.err == ""
    return json.loads(said.out)


async def let_go(kubelets: KubeletFleet) -> None:
    body = {"spec": {"holderIdentity": ""}}
    answer = await kubelets.request(
        "PATCH", f"{PATH}/{NAME}", body=body, content_type="application/merge-patch+json"
    )
    assert answer.status == 200, answer.body


@pytest.mark.usefixtures("renamed")
async def test_status_explain_and_doctor_read_the_lease_that_the_watcher_was_told(
    tmp_path: Path, control_plane: ControlPlane, kubelets: KubeletFleet
):
    explain = ("explain", "node", NODE, "--without-talos")
    status = await told(tmp_path, control_plane, "status")
    assert status["leader"]["holder"] == "watcher-7"
    explained = await told(tmp_path, control_plane, *explain)
    assert "no-leader" not in {finding["fault"] for finding in explained["verdict"]["findings"]}

    await let_go(kubelets)
    status = await told(tmp_path, control_plane, "status")
    assert (status["leader"]["holder"], status["leader"]["state"]) == (None, "wrong")
    explained = await told(tmp_path, control_plane, *explain)
    (said,) = [each for each in explained["verdict"]["findings"] if each["fault"] == "no-leader"]
    assert f"the Lease {LEASES}/{NAME} has no holder" in json.dumps(said)
    diagnosis = json.dumps(await told(tmp_path, control_plane, "doctor"))
    assert f"no watcher leads: Lease {LEASES}/{NAME} has no holder" in diagnosis
    assert f"leases.coordination.k8s.io {NAME} in {LEASES}" in diagnosis
    assert "leases.coordination.k8s.io cloud-controller-manager-talos in kube-system" not in diagnosis
