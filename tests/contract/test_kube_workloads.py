"""The objects of an installation, as `doctor` reads them, on a real and a simulated API server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cli.cluster.kube_reader import get_object
from cli.cluster.pod_commands import build_label_selector
from cli.cluster.pods import Pod
from cli.cluster.read_cluster import list_pods, list_workloads
from libs.common.contract.node import ApiObject
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import KubeError, NotFound
from libs.common.kube.pod_exec import exec_in_pod
from libs.testbed.kubelets import MERGE, STRATEGIC, KubeletFleet

NAMESPACE = "kube-system"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
ACCOUNTS = f"/apis/talos.dev/v1alpha1/namespaces/{NAMESPACE}/serviceaccounts"
ROLES = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
LABELS = {"app.kubernetes.io/name": "described", "app.kubernetes.io/component": "web"}
CONTAINER = {"name": "web", "image": "none", "command": ["python", "-m", "services.web"], "args": ["--a=b"]}
SPEC = {
    "hostNetwork": True,
    "containers": [CONTAINER],
    "volumes": [{"name": "talos-secrets", "secret": {"secretName": "described"}}],
}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "described", "labels": LABELS},
    "spec": {
        "selector": {"matchLabels": LABELS},
        "template": {"metadata": {"labels": LABELS}, "spec": SPEC},
    },
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "described-0", "labels": LABELS},
    "spec": {**SPEC, "nodeName": "somewhere", "automountServiceAccountToken": False},
}


async def send(admin: KubeletFleet, method: str, path: str, body: Any, **options: str) -> Any:
    answer = await admin.request(method, path, body=body, **options)
    assert answer.status in (200, 201), answer
    return answer.body


@pytest.fixture
async def installed(admin: KubeletFleet) -> AsyncIterator[None]:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    # the real server admits a Pod only beside its ServiceAccount; the simulated one has no such kind
    await admin.request("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", body=account)
    await send(admin, "POST", DEPLOYMENTS, DEPLOYMENT)
    await send(admin, "POST", PODS, POD)
    yield
    await admin.request("DELETE", f"{DEPLOYMENTS}/described")
    await admin.request("DELETE", f"{PODS}/described-0", body={"gracePeriodSeconds": 0})


async def pods(api: KubeApi, release: str = "") -> tuple[Pod, ...]:
    labels = build_label_selector(release) if release else {"app.kubernetes.io/name": "described"}
    return await list_pods(api, NAMESPACE, labels)


@pytest.mark.usefixtures("installed")
async def test_a_workload_is_described_by_its_command_its_volumes_and_its_ready_pods(
    admin: KubeletFleet, api: KubeApi
):
    [found] = [one for one in await list_workloads(api) if one.name == "described"]
    assert (found.kind, found.namespace, found.desired_pods, found.ready_pods) == (
        "Deployment",
        NAMESPACE,
        1,
        0,
    )
    container = found.pod.containers[0]
    assert (container.command, container.args) == (("python", "-m", "services.web"), ("--a=b",))
    assert found.pod.volumes[0].secret is not None
    status = {"status": {"replicas": 1, "readyReplicas": 1, "availableReplicas": 1}}
    await send(admin, "PATCH", f"{DEPLOYMENTS}/described/status", status, content_type=MERGE)
    [found] = [one for one in await list_workloads(api) if one.name == "described"]
    assert found.ready_pods == 1


@pytest.mark.usefixtures("installed")
async def test_a_pod_is_found_by_its_labels_and_ready_as_its_kubelet_reports(
    admin: KubeletFleet, api: KubeApi
):
    [pod] = await pods(api)
    assert (pod.status.phase, pod.is_ready, pod.spec.node_name) == ("Pending", False, "somewhere")
    assert await pods(api, "another-release") == ()
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    state = {"name": "web", "restartCount": 3, "image": "none", "imageID": "", "state": running}
    for is_ready, word, why in ((True, "True", ""), (False, "False", "ContainersNotReady: not ready: [web]")):
        condition = {"type": "Ready", "status": word}
        if not is_ready:
            condition |= {"reason": "ContainersNotReady", "message": "not ready: [web]"}
        status = {
            "phase": "Running",
            "conditions": [condition],
            "containerStatuses": [{**state, "ready": is_ready}],
        }
        path = f"{PODS}/described-0/status"
        await send(admin, "PATCH", path, {"status": status}, content_type=STRATEGIC)
        [pod] = await pods(api)
        assert (pod.is_ready, pod.restart_count, pod.why_not_ready) == (is_ready, 3, why)


async def test_a_namespace_of_a_new_cluster_has_the_label_of_its_name(api: KubeApi):
    found = await get_object(api, "/api/v1/namespaces/kube-system", ApiObject)
    assert found.metadata.labels == {"kubernetes.io/metadata.name": "kube-system"}


@pytest.mark.real_only
async def test_a_review_of_nobody_is_refused(admin: KubeletFleet):
    spec = {"resourceAttributes": {"verb": "get", "resource": "pods"}}
    document = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    answer = await admin.request("POST", path, body=document)
    assert (answer.status, answer.body["reason"]) == (422, "Invalid")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("pod", "container", "error"), [("absent-0", "web", NotFound), ("described-0", "absent", KubeError)]
)
async def test_no_command_runs_where_there_is_no_container(
    api: KubeApi, pod: str, container: str, error: type[Exception]
):
    with pytest.raises(error):
        await exec_in_pod(
            api, namespace=NAMESPACE, pod=pod, container=container, command=("true",), timeout_seconds=10
        )
