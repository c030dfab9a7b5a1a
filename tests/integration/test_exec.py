"""Running in a pod: a real API server passes it on to a kubelet that really runs a process."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Forbidden, NotFound, ServerError, Unreachable
from libs.common.kube.pod_exec import ExecResult, exec_in_pod
from libs.testbed.container_commands import ExecKubelet
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from tests.bus_actors import wait_until
from tests.kube_loopback import open_api_by

NAMESPACE = "exec-tests"
ENV = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path.cwd())}


@pytest.fixture(scope="module")
async def kubelet(control_plane: ControlPlane, kubelets: KubeletFleet) -> AsyncIterator[ExecKubelet]:
    """With a pod `shell` in a namespace of its own."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    assert (await kubelets.request("POST", "/api/v1/namespaces", body=namespace)).status == 201

    async def has_account() -> bool:
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        return (await kubelets.request("GET", path)).status == 200

    await wait_until(has_account, "the controller manager has made the service account")
    certificate, key = control_plane.issue_serving_certificate("exec-kubelet", ["127.0.0.1"])
    async with ExecKubelet.start("exec-kubelet", certificate, key, kubelets) as running:
        await running.run_pod(kubelets, namespace=NAMESPACE, name="shell", container="shell", env=ENV)
        yield running
        await running.delete_pod(kubelets, namespace=NAMESPACE, name="shell")


@pytest.fixture
async def kube(control_plane: ControlPlane) -> AsyncIterator[KubeApi]:
    """As an administrator."""
    async with open_api_by(control_plane.kubeconfig()) as api:
        yield api


async def run(api: KubeApi, pod: str, *command: str, seconds: float = 60) -> ExecResult:
    return await exec_in_pod(
        api, namespace=NAMESPACE, pod=pod, container="shell", command=command, timeout_seconds=seconds
    )


async def test_a_command_runs_and_what_it_says_and_how_it_ends_comes_back(
    kube: KubeApi, kubelet: ExecKubelet
):
    script = "import sys; print('x' * 200_000, end=''); print('no & so', file=sys.stderr); sys.exit(3)"
    ran = await run(kube, "shell", "python", "-c", script, "a b", "ü&=%")
    assert (ran.exit_status, ran.stdout, ran.stderr) == (3, b"x" * 200_000, b"no & so\n")
    assert kubelet.commands[-1] == ("python", "-c", script, "a b", "ü&=%")


async def test_what_cannot_run_is_told_by_its_cause(
    kube: KubeApi, kubelet: ExecKubelet, control_plane: ControlPlane
):
    with pytest.raises(ServerError, match="no-such-program"):
        await run(kube, "shell", "no-such-program")
    with pytest.raises(NotFound, match="no-such-pod"):
        await run(kube, "no-such-pod", "true")
    with pytest.raises(Unreachable, match="did not end within 1 s"):
        await run(kube, "shell", "sleep", "30", seconds=1)
    async with open_api_by(control_plane.kubeconfig("stranger")) as stranger:
        with pytest.raises(Forbidden, match="pods/exec"):
            await run(stranger, "shell", "true")


@pytest.mark.parametrize("verbs", [("get", "create"), ("create",), ("get",)])
async def test_it_takes_the_rights_that_the_page_names_and_no_others(
    kubelets: KubeletFleet, kubelet: ExecKubelet, control_plane: ControlPlane, verbs: tuple[str, ...]
):
    user = f"execs-{'-'.join(verbs)}"
    await grant(kubelets, user, {"apiGroups": [""], "resources": ["pods/exec"], "verbs": verbs})

    async def allowed() -> bool:
        try:
            ran = await run(api, "shell", "true")
        except Forbidden:
            return False
        return ran.exit_status == 0

    async with open_api_by(control_plane.kubeconfig(user)) as api:
        if len(verbs) == 2:
            await wait_until(allowed, "the RBAC change is applied")
        else:
            assert not await allowed()


async def grant(kubelets: KubeletFleet, user: str, rule: dict[str, Any]) -> None:
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
    binding = {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    made = [("roles", {"metadata": {"name": user}, "rules": [rule]}), ("rolebindings", binding)]
    for plural, body in made:
        assert (await kubelets.request("POST", f"{rbac}/{plural}", body=body)).status == 201
