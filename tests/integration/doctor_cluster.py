"""A cluster with the chart's objects and pods that are reported as running, for `talos-ccm doctor`."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

from cli.cluster.query import ClusterQuery
from cli.doctor.diagnosis import diagnose, list_parts
from cli.doctor.findings import Diagnosis
from cli.doctor.read_installation import read_installation
from cli.doctor.snapshot import InstallationSnapshot
from libs.common.bus.nats.bus import NatsBus
from libs.common.contract.events import Leading
from libs.common.contract.services import DURABLES, WATCHER_LEASE_NAME, Durable
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.exec_kubelet import ExecKubelet
from libs.testbed.helm.chart import parse_manifests
from libs.testbed.kubelets import MERGE, HttpResponse, KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, make_machine
from libs.testbed.nats_server import NatsServer
from libs.testbed.pki import CertificateAuthority
from tests.bus_actors import MAX_BYTES, wait_until
from tests.deploy.api_server import ApiServer, path_of
from tests.deploy.pods import token_of
from tests.integration.conftest import QUICK
from tests.integration.operator_shell import CommandResult, talos_ccm

ROOT: Final = Path(__file__).parents[2]
MANIFESTS: Final = ROOT / "deploy/k8s/manifests/cloud-controller-manager.yml"
RIGHTS: Final = ROOT / "deploy/k8s/chart/files/rights.yaml"
PREFIX: Final = "talos-cloud-controller-manager"
SYSTEM: Final = "kube-system"
PODS: Final = f"/api/v1/namespaces/{SYSTEM}/pods"
COMPONENT: Final = "app.kubernetes.io/component"
WORKLOADS: Final = ("Deployment", "StatefulSet")
PROVIDED: Final = "alpha.kubernetes.io/provided-node-ip"
Manifest = dict[str, Any]


def manifests() -> list[Manifest]:
    """The default profile as it is rendered, and ipam as the chart would install it beside."""
    found = parse_manifests(MANIFESTS.read_text())
    labeler = [each for each in found if each["metadata"]["name"].endswith("-labeler")]
    ipam = [json.loads(json.dumps(each).replace("labeler", "ipam")) for each in labeler]
    roles = {role["namespace"]: role["rules"] for role in yaml.safe_load(RIGHTS.read_text())["ipam"]}
    for each in ipam:
        if each["kind"].endswith("Role"):
            each["rules"] = roles[each["metadata"].get("namespace", "")]
    return [*found, *ipam, *_of_pages(ipam, roles)]


def _of_pages(ipam: Iterable[Manifest], roles: dict[str, Any]) -> Iterable[Manifest]:
    """Its Role and binding where its pages are: the labeler has none like it."""
    for each in ipam:
        if each["kind"] in ("Role", "RoleBinding"):
            there = copy.deepcopy(each)
            there["metadata"]["namespace"] = "kube-node-lease"
            if there["kind"] == "Role":
                there["rules"] = roles["kube-node-lease"]
            yield there


def kube_controller_manager(*flags: str) -> Manifest:
    """Its pod, as Talos has it."""
    container = {
        "name": "kcm",
        "image": "kcm:v1",
        "command": ["/usr/local/bin/kube-controller-manager", *flags],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "kube-controller-manager-cp-1", "namespace": SYSTEM},
        "spec": {"containers": [container], "automountServiceAccountToken": False},
    }


@dataclass(kw_only=True)
class Installed:
    """An installation, and an operator who runs `doctor` on it."""

    home: Path
    server: ControlPlane
    api: ApiServer
    admin: KubeletFleet
    bus: NatsBus
    nats: NatsServer
    epoch: int = 0

    async def lead(self) -> None:
        """Publish the leader's heartbeat, as the watcher does every few seconds."""
        self.epoch += 1
        await self.bus.publish(
            Leading(stream_id=self.bus.stream_id, epoch=self.epoch, holder=f"{PREFIX}-watcher-0")
        )

    async def seen(self, *only: str, kubeconfig: Path | None = None) -> InstallationSnapshot:
        """The snapshot that the command gathers."""
        await self.lead()
        query = ClusterQuery(kubeconfig=kubeconfig or self.server.kubeconfig(), namespace="")
        return await read_installation(query, list_parts(only))

    async def diagnosis(self, *only: str, kubeconfig: Path | None = None) -> Diagnosis:
        """The diagnosis of that snapshot."""
        return diagnose(await self.seen(*only, kubeconfig=kubeconfig), only)

    async def doctor(self, *arguments: str, **environment: str) -> CommandResult:
        """Run the command itself."""
        await self.lead()
        return await talos_ccm(self.home, self.server, "doctor", *arguments, **environment)

    @property
    def nats_url(self) -> str:
        """The URL of NATS inside the cluster."""
        return self.nats.url

    async def request(self, method: str, path: str, body: Any = None) -> HttpResponse:
        """Send a request as admin and assert that it succeeds."""
        kind = {"content_type": MERGE} if method == "PATCH" else {}
        answer = await self.admin.request(method, path, body=body, **kind)
        assert answer.status in (200, 201), answer
        return answer

    async def apply(self, manifest: Manifest) -> None:
        answer = await self.api.apply(manifest)
        assert answer.status in (200, 201), answer.object

    async def kubeconfig_of(self, account: str) -> Path:
        """A kubeconfig with a token of that ServiceAccount."""
        config = yaml.safe_load(self.server.kubeconfig().read_text())
        config["users"][0]["user"] = {"token": await token_of(self.admin, SYSTEM, account)}
        path = self.home / f"{account}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    async def until_allowed(self, account: str, *, events: bool) -> None:
        """Wait until the account may (or may not) create events in `default`: the authorizer lags behind."""
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        wanted = {"verb": "create", "resource": "events", "namespace": "default"}
        spec = {"user": f"system:serviceaccount:{SYSTEM}:{account}", "resourceAttributes": wanted}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}

        async def is_applied() -> bool:
            answer = await self.request("POST", path, review)
            return bool(answer.body["status"]["allowed"]) is events

        await wait_until(is_applied, "the authorizer applies the binding", 60)

    @asynccontextmanager
    async def changed(self, path: str, wrong: Any, right: Any) -> AsyncIterator[None]:
        """Apply the first merge patch during the block, and the other one afterwards."""
        await self.request("PATCH", path, wrong)
        try:
            yield
        finally:
            await self.request("PATCH", path, right)


@asynccontextmanager
async def installed(folder: Path, machines: MachineFleet) -> AsyncIterator[Installed]:
    """Only an API server and a kubelet run: the status that controllers report is written here."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            ControlPlane.start(folder / "control-plane", controller_manager=False)
        )
        admin = await stack.enter_async_context(KubeletFleet.start(server))
        api = await stack.enter_async_context(ApiServer.connect(server))
        nats = await stack.enter_async_context(NatsServer.start(folder / "nats"))
        bus = await stack.enter_async_context(_taking_part(nats))
        certificate, key = server.issue_serving_certificate("exec-kubelet", ["127.0.0.1"])
        kubelet = await stack.enter_async_context(ExecKubelet.start("cp-1", certificate, key, admin))
        home = folder / "home"
        home.mkdir()
        cluster = Installed(home=home, server=server, api=api, admin=admin, bus=bus, nats=nats)
        await stack.enter_async_context(api.with_talos_accounts())
        await _install(cluster)
        stack.push_async_callback(machines.delete_machines, *await _nodes(cluster, machines))
        await stack.enter_async_context(_pods(cluster, kubelet, nats, machines))
        yield cluster


@asynccontextmanager
async def _taking_part(nats: NatsServer) -> AsyncIterator[NatsBus]:
    """A consumer for every durable."""
    bus = await NatsBus.connect((nats.url,), service="watcher", timing=QUICK)
    await bus.provision(DURABLES, max_bytes=MAX_BYTES)
    others = [await NatsBus.connect((nats.url,), service=d.service) for d in DURABLES]
    tasks = [asyncio.create_task(_take(*each)) for each in zip(others, DURABLES, strict=True)]
    try:
        yield bus
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(each.close() for each in (bus, *others)))


async def _take(bus: NatsBus, durable: Durable) -> None:
    async def handle(message: Any) -> Any:
        raise AssertionError(f"unexpected message: {message}")

    await bus.consume(durable, handle, in_flight=1)


async def _install(cluster: Installed) -> None:
    default = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": SYSTEM},
    }
    talos = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "talos", "namespace": "default"},
        "spec": {"ports": [{"name": "apid", "port": 50000}], "clusterIP": "None"},
    }
    for manifest in (default, talos, *manifests()):
        await cluster.apply(manifest)
    await cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{PREFIX}-nats-ca", "namespace": SYSTEM},
            "data": {"ca.crt": CertificateAuthority.make(common_name="nats").pem.decode()},
        }
    )
    for service in ("labeler", "csr", "ipam"):
        await cluster.until_allowed(f"{PREFIX}-{service}", events=True)
    for manifest in manifests():
        if manifest["kind"] in WORKLOADS:
            await set_ready(cluster, manifest, 1)
    now = datetime.now(UTC)
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": WATCHER_LEASE_NAME, "namespace": SYSTEM},
        "spec": {
            "holderIdentity": f"{PREFIX}-watcher-0_b0c1",
            "leaseDurationSeconds": 3600,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }
    await cluster.apply(lease)
    await cluster.apply(
        kube_controller_manager("--allocate-node-cidrs=true", "--controllers=*,-node-ipam-controller")
    )


async def set_ready(cluster: Installed, manifest: Manifest, ready: int) -> None:
    """What its controller would report."""
    status = {"replicas": 1, "readyReplicas": ready, "availableReplicas": ready}
    await cluster.request("PATCH", f"{path_of(manifest)}/status", {"status": status})


async def _nodes(cluster: Installed, machines: MachineFleet) -> list[str]:
    """Two that have joined and asked for a certificate, and the one of the pods; ids of their machines."""
    some = [make_machine(f"doctor-{n}", f"10.231.0.{n + 1}") for n in range(2)]
    first = make_machine("cp-1", "10.231.0.9", control_plane=True)
    await machines.put_machines(*some, first)
    for machine in some:
        await cluster.admin.join(SimKubelet.of_machine(machine))
        await cluster.admin.request_certificate(SimKubelet.of_machine(machine))
    told = {
        "metadata": {"annotations": {PROVIDED: "10.231.0.9"}},
        "spec": {"providerID": "talos://metal/cp-1"},
    }
    await cluster.request("PATCH", "/api/v1/nodes/cp-1", told)
    return [machine.id for machine in (*some, first)]


@asynccontextmanager
async def _pods(
    cluster: Installed, kubelet: ExecKubelet, nats: NatsServer, machines: MachineFleet
) -> AsyncIterator[None]:
    """One for each workload, in which commands can be run."""
    env = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "HOME": str(cluster.home),
        "NATS_URL": nats.url,
        "TALOSCONFIG": str(machines.write_talosconfig()),
    }
    names = []
    for manifest in manifests():
        if manifest["kind"] not in WORKLOADS:
            continue
        labels = manifest["spec"]["template"]["metadata"]["labels"]
        name = f"{manifest['metadata']['name']}-0"
        await kubelet.run_pod(
            cluster.admin, namespace=SYSTEM, name=name, labels=labels, container=labels[COMPONENT], env=env
        )
        names.append(name)
    yield
    for name in names:
        await kubelet.delete_pod(cluster.admin, namespace=SYSTEM, name=name)
