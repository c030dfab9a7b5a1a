"""Objects of the chart and of deploy/compose/kind are valid for each version of Kubernetes and each other."""

import asyncio
import base64
import importlib.resources
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kubernetes_validate import utils as published
from referencing import Registry, Resource

from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import load_kube_config
from libs.testbed.compose.kind_machines import follow_nodes
from libs.testbed.compose.kind_secrets import ENDPOINT, make_secrets
from libs.testbed.helm.chart import ChartValues, Manifest, render_manifests
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.sim_apiserver.server import SimApiServer
from libs.testbed.sim_machines.requests import CallRejected
from libs.testbed.sim_machines.sim_machine import SimFleet
from tests.bus_actors import run_during, wait_until
from tests.deploy.api_server import ApiServer
from tests.deploy.profiles import DEPLOYED, PROFILES, containers, rendered, rendered_for

OLDEST = (1, 29)
VERSIONS = [
    version
    for version in dict.fromkeys(published.all_versions())
    if tuple(map(int, version.split(".")[:2])) >= OLDEST
]
# For Kubernetes 1.30 and later the objects are the same: `rendered` is for the newest.
ALIKE = [version for version in VERSIONS if tuple(map(int, version.split(".")[:2])) >= (1, 30)]
TALOS = "talos.dev/v1alpha1"


class Schemas:
    """The schemas of one version; definitions are read once."""

    def __init__(self, version: str) -> None:
        files = importlib.resources.files("kubernetes_validate") / "kubernetes-json-schema"
        self._folder = files / f"v{version}-local-strict"
        definitions: Resource[Any] = Resource.from_contents(self._read("_definitions.json"))
        self._registry: Registry[Any] = definitions @ Registry()

    def mistakes(self, manifest: dict[str, Any]) -> list[str]:
        group, _, version = manifest["apiVersion"].rpartition("/")
        parts = [manifest["kind"].lower(), *filter(None, [group.split(".")[0]]), version]
        schema = self._read(f"{'-'.join(parts)}.json")
        validator = jsonschema.Draft202012Validator(schema, registry=self._registry)
        return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]

    def _read(self, name: str) -> Any:
        return json.loads((self._folder / name).read_text())


def distinct(kubernetes: str) -> list[dict[str, Any]]:
    """All different objects of all profiles for that version."""
    found = {
        json.dumps(manifest, sort_keys=True)
        for profile in PROFILES
        for manifest in (rendered(profile) if kubernetes in ALIKE else rendered_for(profile, kubernetes))
    }
    return [json.loads(text) for text in sorted(found)]


def test_the_versions_are_1_29_to_1_37():
    assert [version.rpartition(".")[0] for version in VERSIONS] == [f"1.{minor}" for minor in range(29, 38)]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_field_is_valid_in_that_version_of_kubernetes(version: str):
    schemas = Schemas(version)
    checked = 0
    for manifest in distinct(version):
        if manifest["apiVersion"] == TALOS:
            continue  # a custom resource; the API server judges it below
        checked += 1
        name = f"{manifest['kind']} {manifest['metadata']['name']}"
        assert schemas.mistakes(manifest) == [], name
    assert checked > 50


def test_the_objects_are_the_same_for_kubernetes_1_30_and_later():
    for version in (ALIKE[0], ALIKE[-1]):
        assert rendered_for("default", version) == rendered("default")


RESTRICTED = "pod-security.kubernetes.io/warn"
SPARED = "pod-security.kubernetes.io/enforce"  # as Talos for kube-system: the server only warns


def namespace(name: str) -> Manifest:
    """A Namespace in which the server warns about violations of the level restricted."""
    labels = {RESTRICTED: "restricted", SPARED: "privileged"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


@pytest.fixture(scope="module", autouse=True)
async def namespaces(api_server: ApiServer) -> AsyncIterator[None]:
    await api_server.apply(namespace("kube-system"))  # cannot be deleted
    async with api_server.with_objects([namespace("talos-system")]):
        yield


@pytest.mark.parametrize("profile", PROFILES)
async def test_the_api_server_accepts_every_object_and_a_second_apply_changes_nothing(
    profile: str, api_server: ApiServer
):
    manifests = await asyncio.to_thread(rendered, profile)
    async with api_server.with_objects(manifests) as applied:
        for manifest, answer in zip(manifests, applied, strict=True):
            assert answer.status == 201, f"{manifest['kind']} {manifest['metadata']['name']}: {answer.object}"
        warnings = [warning for answer in applied for warning in answer.warnings]
        if profile in DEPLOYED:
            assert warnings == [], "pods are restricted"
        else:
            (warning,) = warnings
            found = warning.partition(r"\"restricted:latest\": ")[2]
            assert found.startswith("host namespaces (hostNetwork=true), probe or lifecycle host (")
            assert found.count("), ") == 1, "the kubelet probes the loopback address of the node"
        again = [await api_server.apply(manifest) for manifest in manifests]
        for manifest, answer in zip(manifests, again, strict=True):
            assert answer.status == 200, f"{manifest['kind']} {manifest['metadata']['name']}: {answer.object}"
            assert answer.object["metadata"].get("generation", 1) == 1


# ---- kind


FOLDER = Path(__file__).parents[2] / "deploy" / "compose" / "kind"
SCRIPT = (FOLDER / "up.sh").read_text()
APPLIED = list(yaml.safe_load_all((FOLDER / "machines.yaml").read_text()))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_applied_field_is_valid_in_that_version_of_kubernetes(version: str):
    schemas = Schemas(version)
    for manifest in APPLIED:
        assert schemas.mistakes(manifest) == [], manifest["kind"]


def test_the_kubeadm_patches_fit_every_version_of_its_configuration():
    patches = [
        yaml.safe_load(text)
        for text in yaml.safe_load((FOLDER / "cluster.yaml").read_text())["kubeadmConfigPatches"]
    ]
    assert all("apiVersion" not in patch for patch in patches)
    joining = {patch["kind"]: patch for patch in patches}
    for kind in ("InitConfiguration", "JoinConfiguration"):
        flags = joining[kind]["nodeRegistration"]["kubeletExtraArgs"]
        assert flags == {"cloud-provider": "external", "provider-id": None}
    assert joining["KubeletConfiguration"]["serverTLSBootstrap"] is True


def test_the_chart_uses_the_loaded_images():
    rendered = render_manifests(ChartValues(files=(FOLDER / "values.yaml",), repository=""))
    images = {
        (container["image"], container["imagePullPolicy"])
        for workload in rendered
        if workload["kind"] in {"Deployment", "StatefulSet"}
        for container in containers(workload)
        if not container["image"].startswith("docker.io/") and not container["image"].startswith("nats:")
    }
    assert images == {("talos-ccm:dev", "Never")}
    loaded = re.search(r"kind load docker-image --name \S+ (.*)", SCRIPT)
    assert loaded is not None
    assert loaded[1].split() == ["talos-ccm:dev", "talos-ccm-testbed:dev"]


def test_the_talosconfig_is_in_the_secret_that_metadata_mounts():
    rendered = render_manifests(ChartValues(files=(FOLDER / "values.yaml",), repository=""))
    metadata = next(
        m for m in rendered if m["kind"] == "Deployment" and m["metadata"]["name"].endswith("-metadata")
    )
    mounted = {
        v["secret"]["secretName"] for v in metadata["spec"]["template"]["spec"]["volumes"] if "secret" in v
    }
    release = re.search(r"^release=(\S+)$", SCRIPT, re.MULTILINE)
    assert release is not None
    assert f"{release[1]}-talos-secrets" in mounted
    of_metadata, of_machines = make_secrets("kube-system", f"{release[1]}-talos-secrets")["items"]
    config = yaml.safe_load(base64.b64decode(of_metadata["data"]["config"]))
    assert config["contexts"]["default"]["endpoints"] == [ENDPOINT]
    assert of_machines["data"].keys() == {"ca.crt", "server.crt", "server.key"}
    pod = next(m for m in APPLIED if m["kind"] == "Deployment")["spec"]["template"]["spec"]
    assert pod["volumes"][0]["secret"]["secretName"] == of_machines["metadata"]["name"]


def found(machines: SimFleet, ip: str) -> str:
    """The name of the machine at this IP; "" without one."""
    try:
        return machines.find_machine(ip).facts.name
    except CallRejected:
        return ""


async def until_found(machines: SimFleet, ip: str, name: str) -> None:
    await wait_until(lambda: found(machines, ip) == name, f"a machine at {ip}")


async def test_each_node_gets_a_machine_even_if_it_joins_later(tmp_path: Path):
    machines = SimFleet()
    async with SimApiServer.start(tmp_path) as server, KubeletFleet.start(server) as kubelets:
        await kubelets.join(SimKubelet(name="kind-worker", ips=("172.18.0.3", "fc00:f853:ccd:e793::3")))
        api = KubeApi(load_kube_config(server.kubeconfig(), {}), user_agent="test")
        try:
            async with run_during(follow_nodes(api, machines)):
                await until_found(machines, "172.18.0.3", "kind-worker")
                assert found(machines, "fc00:f853:ccd:e793::3") == "kind-worker"
                assert found(machines, "172.18.0.4") == ""
                await kubelets.join(SimKubelet(name="kind-worker2", ips=("172.18.0.4",)))
                await until_found(machines, "172.18.0.4", "kind-worker2")
        finally:
            await api.close()
