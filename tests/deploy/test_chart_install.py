"""Helm installs the chart on a real API server, upgrades from profile to profile, and uninstalls it."""

from pathlib import Path

import pytest

from libs.testbed.control_plane.build import build_program
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.helm.chart import HELM, ChartValues
from tests.deploy.api_server import ApiServer
from tests.deploy.profiles import PROFILES
from tests.deploy.releases import Operator

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


@pytest.fixture
async def operator(control_plane: ControlPlane, tmp_path: Path) -> Operator:
    program, kubeconfig = await build_program(HELM), control_plane.kubeconfig()
    return Operator(program, kubeconfig, tmp_path, release=RELEASE, namespace=NAMESPACE)


async def installed(server: ApiServer) -> set[str]:
    """All objects with the label of the release."""
    label = f"app.kubernetes.io/instance={RELEASE}"
    return {name for collection in COLLECTIONS for name in await server.names(collection, label)}


async def test_profiles_can_be_upgraded_in_place_and_an_uninstall_deletes_all_objects(
    operator: Operator, api_server: ApiServer
):
    name = f"{RELEASE}-talos-cloud-controller-manager"
    try:
        output = await operator.upgrade(PROFILES["default"])
        assert "Services: watcher, metadata, labeler, csr." in output
        assert f"deployments/{name}-labeler" in await installed(api_server)
        assert f"{BINDINGS}/{name}-nats" in await installed(api_server), "the API server serves the kind"
        for profile in ("ha", "reference", "csr-only", "external-nats", "all-in-one", "default"):
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
