"""A machine with the only NATS pod dies: the real controllers create another pod, and clients find it."""

import asyncio
import copy
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.testbed.control_plane.build import build_program
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.helm.chart import CHART, HELM, NAMESPACE, ChartValues, find_nats_workload, select_kind
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from tests.bus_actors import wait_until
from tests.deploy.api_server import ApiServer
from tests.deploy.profiles import PROFILES, prefix, rendered
from tests.deploy.releases import Operator

RELEASE, NAME = "replaced", "replaced-talos-cloud-controller-manager-nats"
MACHINES = ("replaced-cp-1", "replaced-cp-2", "replaced-cp-3")


class Cluster:
    """The NATS pods of a cluster, with the actions of scheduler and kubelets."""

    def __init__(self, kubelets: KubeletFleet, namespace: str, service: str) -> None:
        self._kubelets = kubelets
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._slices = f"{slices}?labelSelector=kubernetes.io%2Fservice-name%3D{service}"

    async def pods(self) -> list[dict[str, Any]]:
        found = await self._kubelets.request(
            "GET", f"{self._pods}?labelSelector=app.kubernetes.io%2Fcomponent%3Dnats"
        )
        assert found.status == 200, found
        items: list[dict[str, Any]] = found.body["items"]
        return items

    async def another(self, known: set[str]) -> dict[str, Any]:
        """Wait for a pod that is not one of those."""
        fresh: list[dict[str, Any]] = []

        async def there() -> bool:
            fresh[:] = [pod for pod in await self.pods() if pod["metadata"]["name"] not in known]
            return bool(fresh)

        await wait_until(there, "another pod", 60)
        (pod,) = fresh
        return pod

    async def runs(self, pod: dict[str, Any], machine: str, ip: str) -> str:
        """Bind the pod and report it ready; return its name."""
        name: str = pod["metadata"]["name"]
        target = {"apiVersion": "v1", "kind": "Node", "name": machine}
        bound = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        assert (
            await self._kubelets.request("POST", f"{self._pods}/{name}/binding", body=bound)
        ).status == 201
        status = {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        patched = await self._kubelets.request(
            "PATCH",
            f"{self._pods}/{name}/status",
            body={"status": status},
            content_type="application/merge-patch+json",
        )
        assert patched.status == 200, patched
        return name

    async def end(self) -> None:
        """Report the end of all pods, as kubelets do."""
        for pod in await self.pods():
            name = pod["metadata"]["name"]
            await self._kubelets.request("DELETE", f"{self._pods}/{name}?gracePeriodSeconds=0")

    async def terminating(self) -> set[str]:
        return {p["metadata"]["name"] for p in await self.pods() if "deletionTimestamp" in p["metadata"]}

    async def ready_addresses(self) -> set[str]:
        """The ready addresses of the Service."""
        found = await self._kubelets.request("GET", self._slices)
        return {
            address
            for slice_ in found.body["items"]
            for endpoint in slice_["endpoints"] or ()
            if endpoint["conditions"]["ready"]
            for address in endpoint["addresses"]
        }


@pytest.fixture
async def operator(
    control_plane: ControlPlane, request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Operator]:
    program, kubeconfig = await build_program(HELM), control_plane.kubeconfig()
    namespace = f"talos-ccm-{request.node.originalname[-20:].strip('_').replace('_', '-')}"
    made = Operator(program, kubeconfig, tmp_path, release=RELEASE, namespace=namespace)
    yield made
    await made.uninstall()


@pytest.fixture
async def joined(kubelets: KubeletFleet) -> AsyncIterator[KubeletFleet]:
    """Joined nodes; without them a deleted pod would vanish at once."""
    await kubelets.join_all(SimKubelet(name=name, ips=("192.0.2.9",)) for name in MACHINES)
    yield kubelets
    for name in MACHINES:
        await kubelets.delete_node(name)


@pytest.fixture
async def cluster(operator: Operator, joined: KubeletFleet) -> Cluster:
    return Cluster(joined, operator.namespace, NAME)


@pytest.mark.usefixtures("api_server")
async def test_a_server_on_a_dead_machine_is_replaced_and_can_be_upgraded_meanwhile(
    operator: Operator, cluster: Cluster, kubelets: KubeletFleet
):
    await operator.upgrade(ChartValues(overrides={"failoverSeconds": 1}))
    lost = await cluster.runs(await cluster.another(set()), MACHINES[0], "198.51.100.1")
    await wait_until(lambda: sent_to(cluster, "198.51.100.1"), "clients find the first server", 60)

    await kubelets.set_unreachable(MACHINES[0])
    second = await cluster.runs(await cluster.another({lost}), MACHINES[1], "198.51.100.2")
    assert await cluster.terminating() == {lost}, "its kubelet does not report its end"
    await wait_until(lambda: sent_to(cluster, "198.51.100.2"), "clients find the second alone", 60)

    await operator.upgrade(
        ChartValues(overrides={"failoverSeconds": 1, "podAnnotations": {"example.net/new": "yes"}})
    )
    third = await cluster.another({lost, second})
    assert third["metadata"]["annotations"] == {"example.net/new": "yes"}
    assert await cluster.terminating() == {lost, second}


@pytest.mark.usefixtures("api_server")
async def test_helm_replaces_the_stateful_set_of_an_older_release(
    operator: Operator, cluster: Cluster, tmp_path: Path
):
    older = Path(shutil.copytree(CHART, tmp_path / "older"))
    rule = older / "templates" / "_nats.tpl"
    condition = "gt (int .Values.nats.replicas) 1"
    assert condition in rule.read_text()
    rule.write_text(rule.read_text().replace(condition, "ge (int .Values.nats.replicas) 1"))
    await operator.upgrade(PROFILES["default"], older)
    old = await cluster.runs(await cluster.another(set()), MACHINES[2], "198.51.100.3")
    assert old == f"{NAME}-0"
    await wait_until(lambda: sent_to(cluster, "198.51.100.3"), "clients find the old server", 60)

    await operator.upgrade(PROFILES["default"])
    await cluster.runs(await cluster.another({old}), MACHINES[1], "198.51.100.4")
    await wait_until(lambda: sent_to(cluster, "198.51.100.4"), "clients find the new one alone", 60)
    await wait_until(lambda: ended(cluster, old), "the old pod is deleted", 60)


async def test_a_stateful_set_that_kubectl_left_still_runs_and_clients_find_only_the_new_server(
    api_server: ApiServer, joined: KubeletFleet
):
    found, several = await asyncio.to_thread(lambda: (rendered("default"), rendered("ha")))
    service = f"{prefix('default')}-nats"
    cluster = Cluster(joined, NAMESPACE, service)
    older = copy.deepcopy(find_nats_workload(several))
    assert older is not None
    older["spec"]["replicas"] = 1
    del older["spec"]["template"]["metadata"]["labels"][
        "talos-ccm/servers"
    ]  # older releases had no such label
    new = [m for m in found if m["metadata"]["name"] == service]
    accounts = [m for m in new if m["kind"] == "ServiceAccount"]
    async with api_server.with_objects([*accounts, older]):
        old = await cluster.runs(await cluster.another(set()), MACHINES[0], "198.51.100.5")
        async with api_server.with_objects([m for m in new if m["kind"] in {"Deployment", "Service"}]):
            await cluster.runs(await cluster.another({old}), MACHINES[1], "198.51.100.6")
            await wait_until(lambda: sent_to(cluster, "198.51.100.6"), "clients find the new one alone", 60)
            assert await cluster.terminating() == set()
    await wait_until(lambda: ended(cluster, old), "the old pod is deleted", 60)
    await cluster.end()


def test_a_workload_that_kubectl_left_gets_no_clients():
    """`kubectl apply` deletes nothing: pods of another profile or an older release may still run."""
    for this, other in (("default", "ha"), ("ha", "default")):
        left = find_nats_workload(rendered(other))
        assert left is not None
        labels = left["spec"]["template"]["metadata"]["labels"]
        service = select_kind(rendered(this), "Service")[f"{prefix(this)}-nats"]
        assert not service["spec"]["selector"].items() <= labels.items()


async def sent_to(cluster: Cluster, address: str) -> bool:
    return await cluster.ready_addresses() == {address}


async def ended(cluster: Cluster, name: str) -> bool:
    return name in await cluster.terminating()
