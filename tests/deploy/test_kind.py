"""deploy/compose/kind: its objects are valid and match the chart, and every Node has a machine."""

import asyncio
import base64
import re
import time
from pathlib import Path

import pytest
import yaml

from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import load_kube_config
from libs.testbed.compose.kind_machines import follow_nodes
from libs.testbed.compose.kind_secrets import ENDPOINT, make_secrets
from libs.testbed.helm.chart import ChartValues, render_manifests
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.sim_apiserver.server import SimApiServer
from libs.testbed.sim_machines.requests import CallRejected
from libs.testbed.sim_machines.sim_machine import SimFleet
from tests.bus_actors import run_during
from tests.deploy.profiles import containers
from tests.deploy.test_chart_valid import VERSIONS, Schemas

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
    deadline = time.monotonic() + 20
    while found(machines, ip) != name:
        assert time.monotonic() < deadline, f"no machine at {ip}"
        await asyncio.sleep(0.02)


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
