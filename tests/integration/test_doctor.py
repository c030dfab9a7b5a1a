"""`talos-ccm doctor` on the chart's objects: healthy parts are ok, each fault has its fix."""

import json
import re
from collections.abc import AsyncIterator

import pytest
import yaml

from cli.doctor.command import CHECK_NAMES
from libs.testbed.machine_fleet import MachineFleet
from tests.bus_actors import wait_until
from tests.integration.doctor_cluster import (
    PODS,
    PREFIX,
    PROVIDED,
    ROOT,
    SYSTEM,
    Installed,
    Manifest,
    installed,
    kube_controller_manager,
    manifests,
)

CONFIG = f"/api/v1/namespaces/{SYSTEM}/configmaps/{PREFIX}"
IMAGE = "your-registry.invalid/talos-cloud-controller-manager"
PAGE = ROOT / "docs/doctor.md"
MANAGER = "kube-controller-manager-cp-1"


@pytest.fixture(scope="module")
async def cluster(
    tmp_path_factory: pytest.TempPathFactory, machines: MachineFleet
) -> AsyncIterator[Installed]:
    async with installed(tmp_path_factory.mktemp("doctor"), machines) as running:
        yield running


def manifest(kind: str, name: str, namespace: str = SYSTEM) -> Manifest:
    [found] = [
        each
        for each in manifests()
        if (each["kind"], each["metadata"]["name"]) == (kind, name)
        and each["metadata"].get("namespace") == namespace
    ]
    return found


async def test_a_healthy_installation_is_told_to_be_well_and_nothing_is_written(cluster: Installed):
    mark = cluster.server.audit_mark()
    said = await cluster.doctor()
    assert (said.status, said.err) == (0, ""), said.out
    assert f"{len(CHECK_NAMES)} ok, 0 wrong, 0 unknown" in said.out
    assert "role os:reader" in said.out
    assert "queried machines answer: cp-1, doctor-0, doctor-1" in said.out
    written = {
        (request.verb, request.resource)
        for request in cluster.server.audit_counts(mark)
        if request.user == "admin" and request.verb not in ("get", "list")
    }
    assert written == {("create", "subjectaccessreviews")}


async def test_four_faults_at_once_are_four_checks_each_with_its_fix(cluster: Installed):
    kubelet = "/api/v1/nodes/doctor-1"
    whole = {"metadata": {"annotations": {PROVIDED: "10.231.0.2"}}}
    broken = {"data": {"ccm-config.yaml": "transformations:\n  - labelz: {a: b}\n"}}
    sound = {"data": {"ccm-config.yaml": "global: {}\n"}}
    labeler = manifest("Deployment", f"{PREFIX}-labeler")
    await cluster.request("DELETE", f"{PODS}/{MANAGER}?gracePeriodSeconds=0")
    await cluster.apply(kube_controller_manager("--allocate-node-cidrs=true"))
    other = json.loads(json.dumps(labeler).replace(f"{IMAGE}:v0.1.0", f"{IMAGE}:v0.0.9"))
    await cluster.apply(other)
    try:
        async with (
            cluster.changed(kubelet, {"metadata": {"annotations": {PROVIDED: None}}}, whole),
            cluster.changed(CONFIG, broken, sound),
        ):
            said = await cluster.doctor("-o", "json")
    finally:
        await cluster.request("DELETE", f"{PODS}/{MANAGER}?gracePeriodSeconds=0")
        await cluster.apply(kube_controller_manager("--controllers=*,-node-ipam-controller"))
        await cluster.apply(labeler)
    assert said.status == 1
    checks = {check["name"]: check for check in json.loads(said.out)["checks"]}
    assert {name for name, check in checks.items() if check["state"] != "ok"} == {
        "config", "kubelets", "pod-cidrs", "versions"
    }  # fmt: skip
    told = {name: json.dumps(check["findings"]) for name, check in checks.items()}
    assert "line 2" in told["config"]
    assert "labelz" in told["config"]
    assert "talos-ccm config check -" in told["config"]
    assert "doctor-1: no annotation" in told["kubelets"]
    assert "--node-ip" in told["kubelets"]
    assert MANAGER in told["pod-cidrs"]
    assert "@deploy/talos/pod-cidrs-patch.yaml" in told["pod-cidrs"]
    assert f"{IMAGE}:v0.0.9 ({PREFIX}-labeler)" in told["versions"]
    assert "kubectl apply --server-side" in told["versions"]


async def test_who_may_do_nothing_is_told_which_rights_it_takes_and_the_rest(
    cluster: Installed,
):
    said = await cluster.doctor("--kubeconfig", str(cluster.server.kubeconfig("stranger")))
    assert said.status == 2, said.out
    assert "list deployments.apps --namespace kube-system" in said.out
    assert "list nodes" in said.out
    assert "create subjectaccessreviews.authorization.k8s.io" in said.out
    assert " 0 wrong" in said.out


async def test_in_the_watchers_pod_it_tells_what_the_watcher_may_see(cluster: Installed):
    path = await cluster.kubeconfig_of(f"{PREFIX}-watcher")
    said = await cluster.doctor(
        "--kubeconfig", str(path), "--only", "rights", "--only", "nats", "--only", "kubelets", "-o", "json",
        NATS_URL=cluster.nats_url
    )  # fmt: skip
    assert said.status == 2, said
    states = {
        check["name"]: {finding["state"] for finding in check["findings"]}
        for check in json.loads(said.out)["checks"]
    }
    assert states["rights"] == {"ok", "unknown"}
    assert "1 ServiceAccounts have their 9 required permissions" in said.out
    assert states["kubelets"] == {"ok"}
    assert "the state of NATS is unknown" not in said.out


async def test_the_role_of_the_page_suffices(cluster: Installed):
    text = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert text
    for each in yaml.safe_load_all(text[1]):
        await cluster.apply(each)
    path = cluster.server.kubeconfig("medic", ["talos-ccm-operators"])

    async def may() -> bool:
        diagnosis = await cluster.diagnosis(kubeconfig=path)
        return {check.state for check in diagnosis.checks} == {"ok"}

    await wait_until(may, "these rights suffice for every check", 60)
