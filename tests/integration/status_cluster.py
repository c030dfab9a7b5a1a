"""An installation with separate services, a NATS that knows keys, and pods in which `talos-ccm` runs."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from libs.common.contract.services import DEFAULT_SERVICES, IPAM
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.exec_kubelet import ExecKubelet
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, make_machine
from libs.testbed.service_processes import ServiceProcesses
from tests.bootstrap_actors import BootstrapInstallation, install_bootstrap
from tests.bus_actors import wait_until
from tests.integration.operator_shell import CommandResult, talos_ccm
from tests.integration.service_cluster import run_services

NAMESPACE = "status-tests"
INSTANCE = "status"
LEASE = f"--lease-name=cloud-controller-manager-talos-{INSTANCE}"
CHART = {"app.kubernetes.io/name": "talos-cloud-controller-manager", "app.kubernetes.io/instance": "ccm"}
COMPONENT = "app.kubernetes.io/component"
WIRINGS = (*DEFAULT_SERVICES, IPAM)
NETWORKS = ("--cluster-cidr=10.244.0.0/16", "--service-cluster-ip-range=10.96.0.0/12")
PORTED = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path.cwd())}


@dataclass
class Installed:
    """An installation, and a shell in which kubectl would work."""

    home: Path
    server: ControlPlane
    kubelets: KubeletFleet
    machines: MachineFleet
    services: ServiceProcesses = field(init=False)
    nats: BootstrapInstallation = field(init=False)
    node: ExecKubelet = field(init=False)
    _joined: list[str] = field(default_factory=list)
    _machines: list[str] = field(default_factory=list)

    async def status(self, *arguments: str, **environment: str) -> CommandResult:
        where = (f"--namespace={NAMESPACE}", LEASE)
        return await talos_ccm(self.home, self.server, "status", *where, *arguments, **environment)

    async def watched(self, *, looks: int) -> CommandResult:
        """`status --watch` in a pipe, ended by Ctrl-C after so many looks."""
        where = (f"--namespace={NAMESPACE}", LEASE, "--watch", "--interval=1s")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cli", "status", *where),
            env=PORTED | {"HOME": str(self.home), "KUBECONFIG": str(self.server.kubeconfig())},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        seen = b""
        async with asyncio.timeout(180):
            while seen.count(b"--- ") < looks and (line := await process.stdout.readline()):
                seen += line
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            rest, err = await process.communicate()
        assert process.returncode is not None
        return CommandResult(process.returncode, (seen + rest).decode(), err.decode())

    async def join(self, *names: str, silent: bool = False, foreign: bool = False) -> None:
        """Nodes; machines of `silent` ones do not answer, `foreign` ones lack the annotation of a node IP."""
        some = [make_machine(name, f"10.229.0.{len(self._joined) + n}") for n, name in enumerate(names, 1)]
        if not silent:
            await self.machines.put_machines(*some)
            self._machines += names
        said = {"provided_node_ip": ""} if foreign else {}
        await self.kubelets.join_all([SimKubelet.of_machine(machine, **said) for machine in some])
        self._joined += names

    async def leave(self) -> None:
        """All that have joined."""
        for name in self._joined:
            await self.kubelets.delete_node(name)
        await self.machines.delete_machines(*self._machines)

    async def run_pod(self, service: str, *, ready: bool = True, env: dict[str, str] | None = None) -> None:
        await self.node.run_pod(
            self.kubelets,
            namespace=NAMESPACE,
            name=f"ccm-{service}-1",
            labels=CHART | {COMPONENT: service},
            container=service,
            env=PORTED | (env or {}),
            ready=ready,
        )


@asynccontextmanager
async def installed(
    run_dir: Path, server: ControlPlane, kubelets: KubeletFleet, machines: MachineFleet
) -> AsyncIterator[Installed]:
    """Ready, with a pod for each service and no Node but that on which these pods are."""
    home = run_dir / "home"
    home.mkdir(parents=True)
    made = Installed(home, server, kubelets, machines)
    async with AsyncExitStack() as stack:
        made.nats = await stack.enter_async_context(install_bootstrap(run_dir / "nats"))
        own_flags: dict[str, list[str]] = {
            each.service: made.nats.nats_flags(each.service) for each in WIRINGS
        }
        made.services = await stack.enter_async_context(
            run_services(
                run_dir / "services",
                server,
                kubelets,
                machines,
                nats_url=made.nats.url,
                wirings=WIRINGS,
                own_flags=own_flags,
                flags=["--allocate-node-cidrs", *NETWORKS],
                instance=INSTANCE,
            )
        )
        await _namespace(kubelets)
        certificate, key = server.issue_serving_certificate("status-kubelet", ["127.0.0.1"])
        made.node = await stack.enter_async_context(
            ExecKubelet.start("status-kubelet", certificate, key, kubelets)
        )
        stack.push_async_callback(made.leave)
        access = made.nats.nats_access("reader")
        reader = {
            "NATS_URL": access.servers[0],
            "NATS_NKEY_FILE": str(access.nkey_seed_file),
            "NATS_CA_FILE": str(access.tls_ca_file),
        }
        of_pods = {"watcher": reader, "metadata": {"TALOSCONFIG": str(machines.write_talosconfig())}}
        for service in ("nats", *(wiring.service for wiring in WIRINGS)):
            await made.run_pod(service, env=of_pods.get(service))
            stack.push_async_callback(
                made.node.delete_pod, kubelets, namespace=NAMESPACE, name=f"ccm-{service}-1"
            )
        yield made


async def _namespace(kubelets: KubeletFleet) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    await kubelets.request("POST", "/api/v1/namespaces", body=namespace)

    async def has_account() -> bool:
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        return (await kubelets.request("GET", path)).status == 200

    await wait_until(has_account, "the controller manager has made the service account", 60)
