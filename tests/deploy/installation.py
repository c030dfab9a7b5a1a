"""The installed chart on a real API server: its pods as processes, and releases by helm."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from libs.testbed.control_plane.build import build_program
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.helm.chart import (
    CHART,
    HELM,
    ChartValues,
    Manifest,
    find_nats_workload,
    select_service_deployments,
)
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.machine_fleet import MachineFleet
from tests.bus_actors import wait_until
from tests.deploy.api_server import ApiServer
from tests.deploy.pods import IP, Pod

WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")
LOCAL = f"--bind-address={IP}"


class Installation:
    """The rendered chart on that API server, with `pods` by component: nats, watcher, ..."""

    def __init__(
        self,
        control_plane: ControlPlane,
        kubelets: KubeletFleet,
        machines: MachineFleet,
        found: list[Manifest],
    ) -> None:
        self.control_plane = control_plane
        self.kubelets = kubelets
        self.machines = machines
        self.manifests = found
        self.pods: dict[str, Pod] = {}

    @classmethod
    @asynccontextmanager
    async def applied(
        cls, control_plane: ControlPlane, machines: MachineFleet, found: list[Manifest]
    ) -> AsyncIterator["Installation"]:
        """Apply all objects except workloads, and create the credential as Talos does."""
        objects = [manifest for manifest in found if manifest["kind"] not in WORKLOADS]
        async with (
            KubeletFleet.start(control_plane) as kubelets,
            ApiServer.connect(control_plane) as server,
            server.with_talos_accounts(),
            server.with_objects(objects) as applied,
        ):
            for manifest, answer in zip(objects, applied, strict=True):
                assert answer.status == 201, f"{manifest['kind']}: {answer.object}"
            made = cls(control_plane, kubelets, machines, found)
            await made._until_trusted()
            await made._issue_talos_credential()
            try:
                yield made
            finally:
                for pod in reversed(made.pods.values()):
                    await pod.stop()

    async def run_nats(self, run_dir: Path) -> None:
        """Run NATS as the kubelet does: the init container to its end, then server and keeper."""
        workload = find_nats_workload(self.manifests)
        assert workload is not None
        pod = self.pods["nats"] = await self._pod(workload, run_dir / "nats")
        flags = [
            f"--listen-address={IP}",
            f"--client-port={pod.port('nats', 'client')}",
            f"--monitor-port={pod.port('nats', 'monitor')}",
            f"--store-dir={pod.volume('data')}",
            f"--secure-port={pod.port('keeper', 'metrics')}",
            "--check-interval=1s",
            LOCAL,
        ]
        bootstrap = pod.start("bootstrap", *flags)
        assert await bootstrap.wait() == 0, bootstrap.tail(50)
        pod.start("nats")
        await pod.until("nats", "startupProbe")
        await pod.until("nats")
        keeper = pod.start("keeper", *flags)
        await pod.until("keeper", "livenessProbe")
        await wait_until(lambda: "server configuration reloaded" in keeper.log.read_text(), keeper.tail(50))

    async def run_services(self, run_dir: Path) -> None:
        """Run each Deployment's pod and wait until all are ready."""
        nats = f"--nats-url=tls://{IP}:{self.pods['nats'].port('nats', 'client')}"
        for workload in select_service_deployments(self.manifests).values():
            service = workload["metadata"]["labels"]["app.kubernetes.io/component"]
            pod = self.pods[service] = await self._pod(workload, run_dir / service)
            port = f"--secure-port={pod.port(service, 'metrics')}"
            endpoints = {"TALOS_ENDPOINTS": ",".join(self.machines.endpoints)}
            pod.start(service, nats, port, LOCAL, env=endpoints if service == "metadata" else None)
        for service, pod in self.pods.items():
            await pod.until(service)

    def forbidden_requests(self) -> dict[str, list[str]]:
        """The forbidden requests of processes in the pods, by account."""
        found: dict[str, list[str]] = {}
        with self.control_plane.audit_log.open("rb") as log:
            entries = [msgspec.json.decode(line) for line in log if line.endswith(b"\n")]
        sent = [entry for entry in entries if entry.get("userAgent", "").startswith("talos-ccm/")]
        assert sent, "no process has sent a request"
        for entry in sent:
            if entry.get("responseStatus", {}).get("code") in (401, 403):
                what = f"{entry['verb']} {entry['requestURI']}"
                found.setdefault(entry["user"].get("username", ""), []).append(what)
        return found

    async def _pod(self, workload: Manifest, folder: Path) -> Pod:
        return await Pod.mounted(workload, folder, self.control_plane.server, self.kubelets)

    async def _until_trusted(self) -> None:
        """Wait until the controller manager has published the CA that pods trust."""
        path = "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt"

        async def published() -> bool:
            return (await self.kubelets.request("GET", path)).status == 200

        await wait_until(published, "kube-root-ca.crt is published")

    async def _issue_talos_credential(self) -> None:
        """Create a Secret with a talosconfig for each Talos ServiceAccount, as Talos does."""
        for account in self.manifests:
            if account["apiVersion"] == "talos.dev/v1alpha1":
                text = self.machines.write_talosconfig(roles=account["spec"]["roles"]).read_text()
                meta: dict[str, Any] = {key: account["metadata"][key] for key in ("name", "namespace")}
                secret = {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": meta,
                    "stringData": {"config": text},
                }
                path = f"/api/v1/namespaces/{meta['namespace']}/secrets"
                made = await self.kubelets.request("POST", path, body=secret)
                assert made.status == 201, made


class Operator:
    """An operator with one release in its own namespace."""

    def __init__(self, control_plane: ControlPlane, home: Path, *, release: str, namespace: str) -> None:
        self.release = release
        self.namespace = namespace
        kubeconfig = str(control_plane.kubeconfig())
        self._environment = {"HOME": str(home), "KUBECONFIG": kubeconfig, "PATH": os.environ["PATH"]}

    async def helm(self, *arguments: str) -> str:
        """Run helm, which must succeed, and return its output."""
        process = await asyncio.create_subprocess_exec(
            await build_program(HELM),
            *arguments,
            f"--namespace={self.namespace}",
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = (await process.communicate())[0].decode()
        assert process.returncode == 0, output
        return output

    async def upgrade(self, values: ChartValues, chart: Path = CHART) -> str:
        """Install or upgrade the release; test_chart_valid validates all fields, at half the CPU."""
        given = [each for each in values.build_arguments() if each.startswith(("--values", "--set"))]
        flags = (*given, "--create-namespace", "--reset-values", "--disable-openapi-validation")
        return await self.helm("upgrade", "--install", self.release, str(chart), *flags)

    async def uninstall(self) -> None:
        """Uninstall the release and wait until its objects are deleted."""
        await self.helm("uninstall", self.release, "--wait", "--timeout=180s")
