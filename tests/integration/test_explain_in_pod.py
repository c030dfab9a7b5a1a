"""`talos-ccm explain node` with nothing but a kubeconfig: a real API server, exec in the watcher's pod."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec
import pytest

from libs.common.contract.machine import MachineFault
from libs.common.contract.node import Node
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.exec_kubelet import ExecKubelet
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.nats_server import NatsServer
from tests.bus_actors import wait_until
from tests.flow_actors import FlowActor
from tests.integration.operator_shell import CommandResult, talos_ccm

NAMESPACE, RELEASE, NODE = "default", "explained", "explained-from-afar"
ENV = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path.cwd())}
SILENT = MachineFault(
    kind="timeout", step="PlatformMetadata", endpoint="cp for 10.234.0.1", message="no answer within 5 s"
)


def labels(service: str = "") -> Mapping[str, str]:
    own = {"app.kubernetes.io/component": service} if service else {}
    return {"app.kubernetes.io/name": "any", "app.kubernetes.io/instance": RELEASE, **own}


@pytest.fixture
async def in_pod(control_plane: ControlPlane, kubelets: KubeletFleet) -> AsyncIterator[ExecKubelet]:
    """A kubelet that runs what is run in pods."""
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"

    async def has_account() -> bool:
        return (await kubelets.request("GET", account)).status == 200

    await wait_until(has_account, "the controller manager has made the service account", 60)
    certificate, key = control_plane.issue_serving_certificate("explain-kubelet", ["127.0.0.1"])
    async with ExecKubelet.start("explain-kubelet", certificate, key, kubelets) as running:
        yield running
        for name in ("explained-watcher", "explained-metadata"):
            await running.delete_pod(kubelets, namespace=NAMESPACE, name=name)
        await kubelets.delete_node(NODE)


async def explain(tmp_path: Path, control_plane: ControlPlane) -> CommandResult:
    own = (f"--namespace={NAMESPACE}", f"--release={RELEASE}")
    return await talos_ccm(tmp_path, control_plane, "explain", "node", NODE, *own)


async def test_what_the_services_said_comes_from_the_watchers_pod_and_stands_in_for_a_talosconfig(
    tmp_path: Path,
    control_plane: ControlPlane,
    kubelets: KubeletFleet,
    in_pod: ExecKubelet,
    nats_server: NatsServer,
):
    joined = await kubelets.join(SimKubelet(name=NODE, ips=("10.234.0.1",)))
    node = msgspec.convert(joined, Node)
    async with FlowActor.open_led(nats_server.url) as flow:
        await flow.publish_unreachable(node, SILENT)
        for service, ready in (("watcher", True), ("metadata", False)):
            await in_pod.run_pod(
                kubelets,
                namespace=NAMESPACE,
                name=f"explained-{service}",
                labels=labels(service),
                container=service,
                env=ENV | {"NATS_URL": nats_server.url},
                ready=ready,
            )
        said = await explain(tmp_path, control_plane)
        first, cause, fix = said.out.splitlines()[:3]
        assert (said.status, said.err) == (1, "")
        assert first.startswith(f"{NODE} is not initialized since ")
        assert cause.endswith(
            "does not answer the Talos API: PlatformMetadata at cp for 10.234.0.1: no answer within 5 s."
        )
        assert fix.endswith("talosctl -n 10.234.0.1 version.")
        assert "reported by metadata at " in said.out
    await nats_server.kill()
    said = await explain(tmp_path, control_plane)
    assert "\nCause         NATS does not answer, so no service receives events: NATS at " in said.out
    await in_pod.delete_pod(kubelets, namespace=NAMESPACE, name="explained-watcher")
    said = await explain(tmp_path, control_plane)
    assert "  unknown: no pod with the labels " in said.out


async def test_a_pod_that_crashes_is_named_and_the_charts_own_file_is_read(
    tmp_path: Path, control_plane: ControlPlane, kubelets: KubeletFleet, in_pod: ExecKubelet
):
    await kubelets.join(SimKubelet(name=NODE, ips=("10.234.0.1",)))
    await in_pod.run_pod(
        kubelets,
        namespace=NAMESPACE,
        name="explained-watcher",
        labels=labels("watcher"),
        container="watcher",
        env=ENV,
        ready=False,
    )
    maps = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    metadata = {"name": "explained", "labels": labels()}
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"ccm-config.yaml": "globl: {}"},
    }
    assert (await kubelets.request("POST", maps, body=body)).status == 201
    try:
        said = await explain(tmp_path, control_plane)
    finally:
        await kubelets.request("DELETE", f"{maps}/explained")
    assert "pod explained-watcher is not ready: watcher: CrashLoopBackOff" in said.out
    assert (
        "Cause         The --cloud-config file is invalid and has no effect: ConfigMap default/explained"
        in said.out
    )
