"""`helm upgrade` from the reference's chart to ours, as docs/migrate.md describes it."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.helm.chart import CHART, RELEASE, ChartValues, render_manifests, select_kind
from libs.testbed.kubelets import KubeletFleet
from tests.architecture.sources import ROOT
from tests.deploy.installation import Operator

NAME: Final = RELEASE
HERE: Final = {"name": NAME, "namespace": "kube-system"}
LABELS: Final = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": NAME}
RBAC: Final = "rbac.authorization.k8s.io"
IMAGE: Final = "registry.example.com/talos-cloud-controller-manager"
PATHS: Final = {
    "Deployment": f"/apis/apps/v1/namespaces/kube-system/deployments/{NAME}",
    "DaemonSet": f"/apis/apps/v1/namespaces/kube-system/daemonsets/{NAME}",
    "Service": f"/api/v1/namespaces/kube-system/services/{NAME}",
    "credential": f"/apis/talos.dev/v1alpha1/namespaces/kube-system/serviceaccounts/{NAME}-talos-secrets",
    "ClusterRole": f"/apis/{RBAC}/v1/clusterroles/system:{NAME}",
    "ClusterRoleBinding": f"/apis/{RBAC}/v1/clusterrolebindings/system:{NAME}",
}


def of_the_reference(kind: str, port: int) -> list[dict[str, Any]]:
    """Objects with the names, selectors and ports of the reference's chart."""
    container = {
        "name": NAME,
        "image": "registry.example.com/reference:v1",
        "command": ["/reference"],
        "ports": [{"name": "metrics", "containerPort": port, "protocol": "TCP"}],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "metrics", "scheme": "HTTPS"}},
    }
    pod = {
        "serviceAccountName": NAME,
        "hostNetwork": kind == "DaemonSet",
        "containers": [container],
        "tolerations": [
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule"}
        ],
    }
    template = {"metadata": {"labels": LABELS}, "spec": pod}
    metrics = {"name": "metrics", "port": port, "targetPort": port, "protocol": "TCP"}
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": f"system:{NAME}"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": HERE},
        {
            "apiVersion": "talos.dev/v1alpha1",
            "kind": "ServiceAccount",
            "metadata": HERE | {"name": f"{NAME}-talos-secrets"},
            "spec": {"roles": ["os:reader"]},
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": role["name"]},
            "rules": [{"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]}],
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": role["name"]},
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", **HERE}],
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": HERE,
            "spec": {"clusterIP": "None", "ports": [metrics], "selector": LABELS},
        },
        {
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": HERE,
            "spec": {"selector": {"matchLabels": LABELS}, "template": template},
        },
    ]


async def there(kubelets: KubeletFleet) -> dict[str, dict[str, Any]]:
    """The objects of the reference that exist."""
    answers = {what: await kubelets.request("GET", path) for what, path in PATHS.items()}
    return {what: answer.body for what, answer in answers.items() if answer.status == 200}


@pytest.mark.usefixtures("api_server")
@pytest.mark.parametrize(("kind", "port"), [("Deployment", 10458), ("DaemonSet", 50258)])
async def test_helm_upgrades_the_references_release_in_place(
    kind: str, port: int, control_plane: ControlPlane, kubelets: KubeletFleet, tmp_path: Path
):
    helm = Operator(control_plane, tmp_path, release=RELEASE, namespace="kube-system").helm
    old = tmp_path / "old"
    (old / "templates").mkdir(parents=True)
    (old / "Chart.yaml").write_text(f"apiVersion: v2\nname: {NAME}\nversion: 0.5.4\n")
    (old / "templates" / "all.yaml").write_text(yaml.safe_dump_all(of_the_reference(kind, port)))
    values = CHART / "ci" / "reference-values.yaml"
    profile = f"--set=daemonSet.enabled={str(kind == 'DaemonSet').lower()},image.repository={IMAGE}"
    try:
        await helm("install", RELEASE, str(old))
        before = await there(kubelets)
        assert set(before) == set(PATHS) - {"Deployment", "DaemonSet"} | {kind}
        with pytest.raises(AssertionError, match="is the image of the reference controller"):
            await helm("upgrade", RELEASE, str(CHART), f"--values={values}")
        specs = {what: each.get("spec") for what, each in (await there(kubelets)).items()}
        assert specs == {what: each.get("spec") for what, each in before.items()}, (
            "a failed upgrade changes nothing"
        )
        await helm("upgrade", RELEASE, str(CHART), f"--values={values}", profile)
        after = await there(kubelets)
    finally:
        await helm("uninstall", RELEASE, "--wait", "--timeout=180s")
    kept = {"Service", "credential"} | ({"DaemonSet"} if kind == "DaemonSet" else set())
    assert set(after) == kept  # its permissions, such as token creation, are deleted
    for what in kept:
        assert after[what]["metadata"]["uid"] == before[what]["metadata"]["uid"]
    assert [each["port"] for each in after["Service"]["spec"]["ports"]] == [10458]
    if kind == "DaemonSet":
        (container,) = after["DaemonSet"]["spec"]["template"]["spec"]["containers"]
        assert container["command"] == ["python", "-m", "services"]
        assert [each["containerPort"] for each in container["ports"]] == [10458]


def test_the_pages_name_existing_deployments():
    named = set()
    for page in ("install", "migrate"):
        text = (ROOT / "docs" / f"{page}.md").read_text()
        named |= set(re.findall(r"deployment/([\w-]+)", text))
    rendered = [
        name
        for release in (RELEASE, "new-ccm", "talos-ccm")
        for name in select_kind(render_manifests(ChartValues(release=release)), "Deployment")
    ]
    assert named
    assert named <= set(rendered)
