"""`talos-ccm doctor` on an installation: healthy parts are ok, each fault has its fix."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.demo.demo_cluster import DemoCluster, make_kubelet, make_machines, start_cluster
from cli.demo.demo_options import DemoOptions
from cli.doctor.command import CHECK_NAMES
from libs.common.contract.node import PROVIDED_NODE_IP_ANNOTATION
from libs.testbed.kubelets import MERGE
from libs.testbed.service_permissions import get_collection_path
from tests.architecture.sources import ROOT
from tests.bus_actors import wait_until
from tests.integration.operator_shell import CommandResult, talos_ccm

PREFIX = "talos-ccm"
CONFIG = f"/api/v1/namespaces/kube-system/configmaps/{PREFIX}"
LABELER = f"/apis/apps/v1/namespaces/kube-system/deployments/{PREFIX}-labeler"
ALL_OK = f"{len(CHECK_NAMES)} ok, 0 wrong, 0 unknown"
_SECONDS = 60


@dataclass
class Installed:
    """The installation of a demo with two Nodes, and an operator who runs `doctor` on it."""

    home: Path
    parts: DemoCluster
    nodes: list[str]

    async def doctor(
        self, *arguments: str, user: str = "medic", groups: tuple[str, ...] = ()
    ) -> CommandResult:
        """Run the command as that user."""
        config = str(self.parts.api_server.kubeconfig(user, groups))
        return await talos_ccm(self.home, self.parts.api_server, "doctor", *arguments, KUBECONFIG=config)

    async def patch(self, path: str, body: Any) -> None:
        await self.parts.kubelets.send("PATCH", path, body=body, content_type=MERGE)


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installed]:
    home = tmp_path_factory.mktemp("doctor")
    rules = home / "rules.yaml"
    rules.write_text("global: {}\n")
    async with start_cluster(home, DemoOptions(cloud_config=rules), lambda *_: None) as parts:
        machines = make_machines(2)
        await parts.machines.put_machines(*machines)
        for kubelet in map(make_kubelet, machines):
            await parts.kubelets.join(kubelet)
            await parts.kubelets.request_certificate(kubelet)
        running = Installed(home, parts, [machine.name for machine in machines])

        async def is_well() -> bool:
            return (await running.doctor(groups=("system:masters",))).status == 0

        await wait_until(is_well, "all services take part", _SECONDS)
        yield running


async def test_a_healthy_installation_is_told_to_be_well_and_nothing_is_written(cluster: Installed):
    mark = cluster.parts.api_server.audit_mark()
    said = await cluster.doctor(groups=("system:masters",))
    assert (said.status, said.err) == (0, ""), said.out
    assert ALL_OK in said.out
    assert "role os:reader" in said.out
    assert f"queried machines answer: {', '.join(sorted(cluster.nodes))}" in said.out
    written = {
        (request.verb, request.resource)
        for request in cluster.parts.api_server.audit_counts(mark)
        if request.user == "medic" and request.verb not in ("get", "list")
    }
    assert written == {("create", "subjectaccessreviews")}


async def test_three_faults_at_once_are_three_checks_each_with_its_fix(cluster: Installed):
    node = cluster.nodes[1]
    deployment = (await cluster.parts.kubelets.request("GET", LABELER)).body
    address = (await cluster.parts.kubelets.request("GET", f"/api/v1/nodes/{node}")).body["metadata"][
        "annotations"
    ][PROVIDED_NODE_IP_ANNOTATION]

    async def set_state(image: str, rules: str, provided: str | None) -> None:
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        containers = {"containers": [container | {"image": image}]}
        await cluster.patch(LABELER, {"spec": {"template": {"spec": containers}}})
        await cluster.patch(CONFIG, {"data": {"ccm-config.yaml": rules}})
        annotations = {PROVIDED_NODE_IP_ANNOTATION: provided}
        await cluster.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": annotations}})

    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    await set_state("ccm:v0.0.9", "transformations:\n  - labelz: {a: b}\n", None)
    try:
        said = await cluster.doctor("-o", "json", groups=("system:masters",))
    finally:
        await set_state(image, "global: {}\n", address)
    assert said.status == 1
    checks = {check["name"]: check for check in json.loads(said.out)["checks"]}
    assert {name for name, check in checks.items() if check["state"] != "ok"} == {
        "config", "kubelets", "versions"
    }  # fmt: skip
    told = {name: json.dumps(check["findings"]) for name, check in checks.items()}
    assert "line 2" in told["config"]
    assert "talos-ccm config check -" in told["config"]
    assert f"{node}: no annotation" in told["kubelets"]
    assert "--node-ip" in told["kubelets"]
    assert f"ccm:v0.0.9 ({PREFIX}-labeler)" in told["versions"]
    assert "kubectl apply --server-side" in told["versions"]


async def test_who_may_do_nothing_is_told_which_rights_it_takes_and_the_rest(cluster: Installed):
    said = await cluster.doctor(user="stranger")
    assert said.status == 2, said.out
    assert "list deployments.apps --namespace kube-system" in said.out
    assert "list nodes" in said.out
    assert "create subjectaccessreviews.authorization.k8s.io" in said.out
    assert " 0 wrong" in said.out


async def test_the_role_of_the_page_suffices(cluster: Installed):
    text = re.search(r"```yaml\n(.*?)```", (ROOT / "docs/doctor.md").read_text(), re.DOTALL)
    assert text
    for manifest in yaml.safe_load_all(text[1]):
        await cluster.parts.kubelets.send("POST", get_collection_path(manifest), body=manifest)
    said = await cluster.doctor(groups=("talos-ccm-operators",))
    assert ALL_OK in said.out
