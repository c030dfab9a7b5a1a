"""Helm installs, upgrades and removes the chart on a real API server; NATS moves to another machine."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.helm.chart import ChartValues, find_nats_workload, select_kind
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from tests.bus_actors import wait_until
from tests.deploy.api_server import ApiServer
from tests.deploy.installation import Operator
from tests.deploy.profiles import PROFILES, prefix, rendered

RELEASE, NAMESPACE = "installed", "talos-ccm-installed"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
BINDINGS = "validatingadmissionpolicybindings"
COLLECTIONS = (
    *(f"/apis/apps/v1/{kind}" for kind in ("deployments", "daemonsets", "statefulsets")),
    *(f"/api/v1/{kind}" for kind in ("services", "configmaps", "serviceaccounts")),
    *(f"{RBAC}/{kind}" for kind in ("roles", "rolebindings", "clusterroles", "clusterrolebindings")),
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/apis/talos.dev/v1alpha1/serviceaccounts",
    *(f"/apis/admissionregistration.k8s.io/v1/{kind}" for kind in ("validatingadmissionpolicies", BINDINGS)),
)


async def installed(server: ApiServer) -> set[str]:
    """All objects with the label of the release."""
    label = f"app.kubernetes.io/instance={RELEASE}"
    return {name for collection in COLLECTIONS for name in await server.names(collection, label)}


async def test_profiles_can_be_upgraded_in_place_and_an_uninstall_deletes_all_objects(
    control_plane: ControlPlane, api_server: ApiServer, tmp_path: Path
):
    operator = Operator(control_plane, tmp_path, release=RELEASE, namespace=NAMESPACE)
    name = f"{RELEASE}-talos-cloud-controller-manager"
    try:
        output = await operator.upgrade(PROFILES["default"])
        assert "Services: watcher, metadata, labeler, csr." in output
        assert f"deployments/{name}-labeler" in await installed(api_server)
        assert f"{BINDINGS}/{name}-nats" in await installed(api_server), "the API server serves the kind"
        for profile in ("ha", "all-in-one", "default"):
            output = await operator.upgrade(PROFILES[profile])
            in_one = profile == "all-in-one"
            assert ("One process on each control plane" in output) == in_one
            assert "Unknown values" not in output
            found = {each for each in await installed(api_server) if each.startswith("daemonsets/")}
            assert found == ({f"daemonsets/{name}"} if in_one else set())
        output = await operator.upgrade(ChartValues(overrides={"enabled": True, "replicas": 3}))
        assert "Unknown values, ignored: enabled, replicas" in output
    finally:
        await operator.uninstall()
    assert await installed(api_server) == set()


REPLACED_RELEASE, NAME = "replaced", "replaced-talos-cloud-controller-manager-nats"
MACHINES = ("replaced-cp-1", "replaced-cp-2")


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

        await wait_until(there, "another pod")
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
async def replacing(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Operator]:
    made = Operator(control_plane, tmp_path, release=REPLACED_RELEASE, namespace="talos-ccm-replaced")
    yield made
    await made.uninstall()


@pytest.fixture
async def cluster(replacing: Operator, kubelets: KubeletFleet) -> AsyncIterator[Cluster]:
    """Nodes have joined; without them a deleted pod would vanish at once."""
    await kubelets.join_all(SimKubelet(name=name, ips=("192.0.2.9",)) for name in MACHINES)
    yield Cluster(kubelets, replacing.namespace, NAME)
    for name in MACHINES:
        await kubelets.delete_node(name)


@pytest.mark.usefixtures("api_server")
async def test_a_server_on_a_dead_machine_is_replaced_and_can_be_upgraded_meanwhile(
    replacing: Operator, cluster: Cluster, kubelets: KubeletFleet
):
    await replacing.upgrade(ChartValues(overrides={"failoverSeconds": 1}))
    lost = await cluster.runs(await cluster.another(set()), MACHINES[0], "198.51.100.1")
    await wait_until(lambda: sent_to(cluster, "198.51.100.1"), "clients find the first server")

    await kubelets.set_unreachable(MACHINES[0])
    second = await cluster.runs(await cluster.another({lost}), MACHINES[1], "198.51.100.2")
    assert await cluster.terminating() == {lost}, "its kubelet does not report its end"
    await wait_until(lambda: sent_to(cluster, "198.51.100.2"), "clients find the second alone")

    await replacing.upgrade(
        ChartValues(overrides={"failoverSeconds": 1, "podAnnotations": {"example.net/new": "yes"}})
    )
    third = await cluster.another({lost, second})
    assert third["metadata"]["annotations"] == {"example.net/new": "yes"}
    assert await cluster.terminating() == {lost, second}


def test_a_workload_that_kubectl_left_gets_no_clients():
    """`kubectl apply` deletes nothing: pods of another profile may still run."""
    for this, other in (("default", "ha"), ("ha", "default")):
        left = find_nats_workload(rendered(other))
        assert left is not None
        labels = left["spec"]["template"]["metadata"]["labels"]
        service = select_kind(rendered(this), "Service")[f"{prefix(this)}-nats"]
        assert not service["spec"]["selector"].items() <= labels.items()


async def sent_to(cluster: Cluster, address: str) -> bool:
    return await cluster.ready_addresses() == {address}
