"""`talos-ccm doctor` and `talos-ccm status` on an installation, with its faults and with few permissions."""

import asyncio
import json
import re
import signal
import sys
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
from libs.common.contract.services import DEFAULT_SERVICES, DURABLES, IPAM, NAMED_SERVICES
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.kubelets import MERGE, SimKubelet
from libs.testbed.machine_fleet import make_machine
from libs.testbed.service_permissions import RBAC, get_collection_path
from tests.architecture.sources import ROOT
from tests.bus_actors import wait_until
from tests.integration.operator_shell import Cluster, CommandResult, talos_ccm
from tests.integration.service_cluster import MEMORY, ServiceCluster

PREFIX = "talos-ccm"
CONFIG = f"/api/v1/namespaces/kube-system/configmaps/{PREFIX}"
LABELER = f"/apis/apps/v1/namespaces/kube-system/deployments/{PREFIX}-labeler"
ALL_OK = f"{len(CHECK_NAMES)} ok, 0 wrong, 0 unknown"


@dataclass
class Installed:
    """The installation of a demo with two Nodes, and an operator who runs commands on it."""

    home: Path
    parts: DemoCluster
    nodes: list[str]

    async def run(
        self, *arguments: str, user: str = "medic", groups: tuple[str, ...] = ("system:masters",)
    ) -> CommandResult:
        """Run a command as that user."""
        config = str(self.parts.api_server.kubeconfig(user, groups))
        return await talos_ccm(self.home, self.parts.api_server, *arguments, KUBECONFIG=config)

    async def tell(self, command: str, **options: Any) -> Any:
        """Return what a command prints for programs."""
        return json.loads((await self.run(command, "-o", "json", **options)).out)

    async def grant(self, page: str, group: str) -> None:
        """Create the roles of a page and, where it has none, their bindings to the group."""
        text = re.search(r"```yaml\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
        assert text
        subject = {"apiGroup": RBAC, "kind": "Group", "name": group}
        roles = [each for each in yaml.safe_load_all(text[1]) if not each["kind"].endswith("Binding")]
        for role in roles:
            name, kind = role["metadata"]["name"], role["kind"]
            binding = role | {"kind": f"{kind}Binding", "subjects": [subject]}
            binding["roleRef"] = {"apiGroup": RBAC, "kind": kind, "name": name}
            for manifest in (role, binding):
                await self.parts.kubelets.send("POST", get_collection_path(manifest), body=manifest)

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
            return (await running.run("doctor")).status == 0

        await wait_until(is_well, "all services take part")
        yield running


async def test_a_healthy_installation_is_told_to_be_well_and_nothing_is_written(cluster: Installed):
    mark = cluster.parts.api_server.audit_mark()
    said = await cluster.run("doctor")
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
        checks = {check["name"]: check for check in (await cluster.tell("doctor"))["checks"]}
    finally:
        await set_state(image, "global: {}\n", address)
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


async def test_who_may_not_list_workloads_is_told_which_right_is_missing(cluster: Installed):
    said = await cluster.run("doctor", user="stranger", groups=())
    assert said.status == 2, said.out
    assert 'cannot list resource "deployments"' in said.err


async def test_the_roles_of_the_pages_suffice(cluster: Installed):
    await cluster.grant("doctor.md", "medics")
    assert ALL_OK in (await cluster.run("doctor", groups=("medics",))).out
    await cluster.grant("status.md", "readers")
    told = await cluster.tell("status", groups=("readers",))
    assert told["unknown"] == []
    assert told["stream"]
    assert [one["name"] for one in told["certificates"]] == ["talos"]


@pytest.fixture
async def stuck(cluster: Installed) -> AsyncIterator[list[str]]:
    """Names of a Node whose machine does not answer, and of one whose kubelet announces no address."""
    silent, plain = (make_machine(name, f"10.229.0.{n}") for n, name in enumerate(("gone", "plain"), 1))
    await cluster.parts.machines.put_machines(plain)
    await cluster.parts.kubelets.join(SimKubelet.of_machine(silent))
    await cluster.parts.kubelets.join(SimKubelet.of_machine(plain, provided_node_ip=""))
    yield [silent.name, plain.name]
    for machine in (silent, plain):
        await cluster.parts.kubelets.delete_node(machine.name)
    await cluster.parts.machines.delete_machines(plain.id)


async def test_what_keeps_nodes_from_being_usable_is_told_and_the_services_are_there(
    cluster: Installed, stuck: list[str]
):
    found: Any = {}

    async def is_blocked() -> bool:
        nonlocal found
        found = await cluster.tell("status")
        return any(one["blocked"] for one in found["nodes"]["uninitialized"])

    await wait_until(is_blocked, "the condition of the silent Node says why")
    silent, plain = stuck
    why = {one["name"]: one["why"] for one in found["nodes"]["uninitialized"]}
    assert why.keys() == {silent, plain}
    assert "TalosUnreachable" in why[silent]
    assert "provided-node-ip" in why[plain]
    names = [*(wiring.service for wiring in NAMED_SERVICES), "cloud-demo"]
    assert {one["name"]: one["state"] for one in found["services"]} == dict.fromkeys(names, "well")
    assert found["leader"]["state"] == "well"
    assert found["leader"]["heartbeatSeconds"] is not None
    assert found["stream"]["messages"] > 0
    assert {one["name"] for one in found["queues"]} == {durable.name for durable in DURABLES}
    assert found["unknown"] == []
    assert [line for line in found["wrong"] if line.startswith("Nodes: ")]


async def test_watched_without_a_terminal_each_look_is_appended_until_ctrl_c(cluster: Installed):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "status", "--watch", "--interval=1s"),
        env={"HOME": str(cluster.home), "KUBECONFIG": str(cluster.parts.api_server.kubeconfig())},
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    said = b""
    async with asyncio.timeout(HANG_SECONDS):
        while said.count(b"--- ") < 2 and (line := await process.stdout.readline()):
            said += line
        process.send_signal(signal.SIGINT)
        rest, _ = await process.communicate()
    assert b"\x1b" not in said + rest
    assert process.returncode == (0 if b"no problems" in said + rest else 1)


COUNT = 5
POOLS = "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"
FLAGS = [
    "--allocate-node-cidrs",
    POOLS,
    "--service-cluster-ip-range=10.96.0.0/12,fd00:10:96::/112",
    "--node-cidr-mask-size-ipv6=96",
    "--pod-cidr-quarantine=1h",
]
AS_IPAM = (POOLS, "--node-cidr-mask-size-ipv6=96", "--pod-cidr-quarantine=1h")


async def test_what_ipam_gave_is_told_as_it_is_and_nothing_is_written(simulated_cluster: ServiceCluster):
    await simulated_cluster.serve(**MEMORY, flags=FLAGS, wirings=(*DEFAULT_SERVICES, IPAM))
    await simulated_cluster.join(*(make_machine(f"status-{n}", f"10.229.0.{n + 1}") for n in range(COUNT)))

    async def served() -> bool:
        return sum("podCIDRs" in node["spec"] for node in await simulated_cluster.list_nodes()) == COUNT

    await wait_until(served, "all have pod CIDRs")
    allocated = Cluster.of("node", simulated_cluster)
    mark = allocated.server.audit_mark()
    said = await allocated.run("status", "ipam", *AS_IPAM, "--nodes")
    assert (said.status, said.err) == (0, "")
    lines = [line.split() for line in said.out.splitlines()]
    assert ["default", "10.244.0.0/16", "/24", "256", "5", "251", "0"] in lines
    assert ["default", "fd00:10:244::/48", "/96", "2^48", "5", "2^48", "-", "5", "0"] in lines
    for node in await simulated_cluster.list_nodes():
        for cidr in node["spec"]["podCIDRs"]:
            assert [node["metadata"]["name"], cidr, "claimed"] in lines
    assert ["Conflicts", "none"] in lines
    assert "no pod with the labels" in said.out  # this cluster has no pods: that is reported, not hidden
    asked = {
        (request.verb, request.resource)
        for request in allocated.server.audit_counts(mark)
        if request.user == "admin" and request.resource in ("nodes", "configmaps")
    }
    assert asked == {("list", "nodes"), ("list", "configmaps")}
