"""Helm installs the chart on a real API server, changes one profile into another, and takes it away."""

import asyncio
import os
from pathlib import Path

import pytest

from libs.testbed.control_plane.build import built
from libs.testbed.control_plane.cluster import ControlPlane
from libs.testbed.helm.chart import CHART, HELM, Values
from tests.deploy.api_server import ApiServer
from tests.deploy.profiles import PROFILES

RELEASE, NAMESPACE = "installed", "talos-ccm-installed"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
COLLECTIONS = (
    *(f"/apis/apps/v1/{kind}" for kind in ("deployments", "daemonsets", "statefulsets")),
    *(f"/api/v1/{kind}" for kind in ("services", "configmaps", "serviceaccounts")),
    *(f"{RBAC}/{kind}" for kind in ("roles", "rolebindings", "clusterroles", "clusterrolebindings")),
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/apis/talos.dev/v1alpha1/serviceaccounts",
)


class Operator:
    """Somebody with helm and a kubeconfig."""

    def __init__(self, program: Path, kubeconfig: Path, home: Path) -> None:
        self._program = program
        self._environment = {"HOME": str(home), "KUBECONFIG": str(kubeconfig), "PATH": os.environ["PATH"]}

    async def helm(self, *arguments: str) -> str:
        """What helm says; it must succeed."""
        process = await asyncio.create_subprocess_exec(
            self._program,
            *arguments,
            f"--namespace={NAMESPACE}",
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said = (await process.communicate())[0].decode()
        assert process.returncode == 0, said
        return said

    async def upgrade(self, values: Values) -> str:
        """Install it, or change what is installed."""
        said = [argument for argument in values.arguments() if argument.startswith(("--values", "--set"))]
        return await self.helm(
            "upgrade", "--install", RELEASE, str(CHART), *said, "--create-namespace", "--reset-values"
        )


@pytest.fixture
async def operator(control_plane: ControlPlane, tmp_path: Path) -> Operator:
    return Operator(await built(HELM), control_plane.kubeconfig(), tmp_path)


async def installed(server: ApiServer) -> set[str]:
    """All that bears the release's label."""
    label = f"app.kubernetes.io/instance={RELEASE}"
    return {name for collection in COLLECTIONS for name in await server.names(collection, label)}


async def test_one_profile_becomes_another_in_place_and_nothing_is_left_in_the_end(
    operator: Operator, api_server: ApiServer
):
    name = f"{RELEASE}-talos-cloud-controller-manager"
    try:
        said = await operator.upgrade(PROFILES["default"])
        assert "Services: watcher, metadata, labeler, csr." in said
        assert f"deployments/{name}-labeler" in await installed(api_server)
        for profile in ("ha", "reference", "csr-only", "external-nats", "all-in-one", "default"):
            said = await operator.upgrade(PROFILES[profile])
            in_one = profile == "all-in-one"
            assert ("One process on each control plane" in said) == in_one
            assert "No such value" not in said
            found = {each for each in await installed(api_server) if each.startswith("daemonsets/")}
            assert found == ({f"daemonsets/{name}"} if in_one else set())
        said = await operator.upgrade(Values(said={"daemonset.enabled": True, "replicas": 3}))
        assert "No such value, and nothing came of it: daemonset, replicas" in said
    finally:
        await operator.helm("uninstall", RELEASE, "--wait", "--timeout=60s")
    assert await installed(api_server) == set()
