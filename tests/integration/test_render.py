"""`talos-ccm render --from-cluster`: Kubernetes and Talos machines are read, and nothing else is done."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.render.preview import diff_nodes
from libs.common.contract.node import Node
from libs.common.contract.platforms import PLATFORMS
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.machine_fleet import make_machine
from tests.bus_actors import wait_until
from tests.integration.operator_shell import Cluster
from tests.integration.service_cluster import MEMORY, ServiceCluster, run_services

ONE = make_machine("rendered", "10.230.0.1")
RULES = """
global: {clusterName: shown}
transformations:
  - name: all
    sanitize: true
    labels: {example.com/product: "{{ .ProductName }}", example.com/talos: "{{ .TalosVersion }}"}
    annotations: {example.com/both: "{{ .Manufacturer }} & <{{ .ProductName }}>"}
    taints: {example.com/agent: "{{ .Platform }}:NoSchedule"}
  - name: zoned
    nodeSelector: [{matchExpressions: [{key: zone, operator: Exists}]}]
    labels: {node-role.kubernetes.io/zoned: "", example.com/raw: "{{ .ProviderID }}"}
    platformMetadata: {region: "r-{{ .Zone }}"}
"""
CHANGED = """
global: {clusterName: shown}
transformations:
  - name: all
    labels: {example.com/product: "{{ .ProductName }}"}
    annotations: {example.com/both: "{{ .ProductName }}"}
    taints: {example.com/agent: "NoExecute", example.com/other: "x:PreferNoSchedule"}
"""


@pytest.fixture
def operator(separate_cluster: ServiceCluster) -> Cluster:
    shell = Cluster.of("node", separate_cluster)
    (shell.home / "rules.yaml").write_text(RULES)
    (shell.home / "changed.yaml").write_text(CHANGED)
    return shell


async def start_render(operator: Cluster, *arguments: str) -> asyncio.subprocess.Process:
    """A `talos-ccm render` in a process of its own."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "render", *arguments),
        cwd=operator.home,
        env={
            "HOME": str(operator.home),
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(operator.server.kubeconfig()),
            "TALOSCONFIG": str(operator.machines.write_talosconfig()),
            "PYTHONPATH": str(Path.cwd()),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def render_json(operator: Cluster, *arguments: str) -> Any:
    """The JSON output."""
    said = await operator.run("render", *arguments, "-o", "json")
    assert (said.status, said.err) == (0, "")
    return json.loads(said.out)


async def test_what_is_missing_is_said_with_what_to_do(operator: Cluster):
    await operator.join(ONE)
    command = ("render", "rules.yaml", "--from-cluster", ONE.name)
    without = await operator.run(*command, TALOSCONFIG="none")
    assert "cannot access the Talos API: no talosconfig: none of these files" in without.err
    assert without.status == 2
    for options, reason in (
        (("--context", "other"), "cannot access the Kubernetes API: "),
        (("--talos-endpoints", "127.0.0.1:1"), "no connection to 127.0.0.1:1"),
        (("--from-cluster", "none"), "none: Node not found"),
    ):
        said = await operator.run(*command, *options)
        assert (said.status, reason in said.err) == (2, True), said


async def nodes_of(operator: Cluster) -> dict[str, Node]:
    """All Nodes as they are; what the node controller says of their readiness is not ours."""
    items = (await operator.kubelets.request("GET", "/api/v1/nodes")).body["items"]
    nodes = {}
    for item in items:
        taints = item["spec"].get("taints", [])
        item["spec"]["taints"] = [t for t in taints if not t["key"].startswith("node.kubernetes.io/")]
        nodes[item["metadata"]["name"]] = msgspec.convert(item, Node)
    return nodes


async def until_as_predicted(operator: Cluster, before: dict[str, Node], told: Any) -> None:
    """The Nodes become what was shown, each of them and in everything."""
    predicted = {node["name"]: node["changes"] for node in told["nodes"]}
    differing: dict[str, Any] = {}

    async def as_predicted() -> bool:
        after = await nodes_of(operator)
        done = {name: msgspec.to_builtins(diff_nodes(before[name], after[name])) for name in after}
        differing.clear()
        differing.update({n: done[n] for n in done if list(done[n]) != predicted.get(n, [])})
        return not differing

    try:
        await wait_until(as_predicted, "as predicted")
    except AssertionError:
        assert differing == {name: predicted.get(name, []) for name in differing}
        raise


async def test_what_is_shown_is_what_the_services_then_do(tmp_path: Path, operator: Cluster):
    """With rules on joining nodes of every platform, and when the rules change under them."""
    everywhere = [
        make_machine(f"shown-{n}", f"10.230.3.{n}", platform=platform)
        for n, platform in enumerate(sorted(PLATFORMS), start=1)
    ]
    rules = operator.home / "rules.yaml"
    await operator.join(*everywhere)
    before = await nodes_of(operator)
    mark = operator.server.audit_mark()
    told = await render_json(operator, "rules.yaml", "--all-nodes")
    assert {f"{each.verb} {each.resource}" for each in operator.server.audit_counts(mark)} == {"list nodes"}
    assert all(node["changes"] for node in told["nodes"])
    async with run_services(
        tmp_path / "services",
        operator.server,
        operator.kubelets,
        operator.machines,
        **MEMORY,
        flags=[f"--cloud-config={rules}"],
    ):
        await until_as_predicted(operator, before, told)
        before = await nodes_of(operator)
        told = await render_json(operator, "changed.yaml", "--against", "rules.yaml", "--all-nodes")
        assert len(told["nodes"]) == len(everywhere)
        rules.write_text(CHANGED)
        await until_as_predicted(operator, before, told)
    again = await operator.run("render", "changed.yaml", "--all-nodes", "--exit-code")
    assert again.status == 0, again.out


async def test_an_interrupt_ends_it_quietly_while_a_machine_keeps_it_waiting(operator: Cluster):
    await operator.join(ONE)
    await operator.machines.set_faults(ONE.id, hang=True)

    async def interrupted() -> bool:
        """Whether the interrupt came while it waited: it gives a machine 5 s, which a busy test may miss."""
        await operator.machines.reset_calls()
        process = await start_render(operator, "rules.yaml", "--all-nodes")

        async def is_asking() -> bool:
            calls = await operator.machines.count_calls()
            return process.returncode is not None or any(call.node for call in calls)

        await wait_until(is_asking, "the machine is asked")
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        async with asyncio.timeout(HANG_SECONDS):
            out, err = await process.communicate()
        if process.returncode == 2 and b"in time" in err:
            return False
        assert (process.returncode, out) == (130, b"")
        assert err in (b"", b"Reading the nodes ...\n")
        return True

    await wait_until(interrupted, "the interrupt came in time")
