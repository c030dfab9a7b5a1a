"""Kept keys and withheld taints on the real API server: all commands tell them, and what they print works."""

import shlex
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from libs.common.contract.node import APPLY_TAINTS_ANNOTATION, PROVIDED_NODE_IP_ANNOTATION
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import MERGE, KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, make_machine
from tests.bus_actors import wait_until
from tests.integration.operator_shell import Cluster, talos_ccm
from tests.integration.service_cluster import run_services

ZONE, NOTE, AGENT = "topology.kubernetes.io/zone", "example.com/note", "example.com/agent"
FILE = f"""
ownership:
  nodeSelector: [{{matchExpressions: [{{key: metadata.name, operator: Regexp, values: ["^kept-"]}}]}}]
transformations:
- name: all
  annotations: {{{NOTE}: ours}}
  taints: {{{AGENT}: "waiting:NoSchedule"}}
"""


class Operator(Cluster):
    """A shell with `talos-ccm` and, as far as the printed commands need it, `kubectl`."""

    async def node(self, name: str) -> Any:
        return (await self.kubelets.request("GET", f"/api/v1/nodes/{name}")).body

    async def kubectl(self, command: str) -> None:
        """Send the request of kubectl's label, annotate or taint."""
        kubectl, verb, kind, name, change = shlex.split(command)
        assert (kubectl, kind) == ("kubectl", "node")
        key, equals, value = change.removesuffix("-").partition("=")
        body: dict[str, Any] = {"spec": {"taints": await self._taints_without(name, key)}}
        if verb != "taint":
            field = {"label": "labels", "annotate": "annotations"}[verb]
            body = {"metadata": {field: {key: value if equals else None}}}
        path = f"/api/v1/nodes/{name}?fieldManager=kubectl-{verb}"
        answer = await self.kubelets.request("PATCH", path, body=body, content_type=MERGE)
        assert answer.status == 200, answer.body

    async def _taints_without(self, name: str, key: str) -> list[Any]:
        taints = (await self.node(name))["spec"].get("taints", [])
        return [each for each in taints if f"{each['key']}:{each['effect']}" != key]

    async def ask_everything(self, name: str) -> dict[str, str]:
        """What the three commands show."""
        file = str(self.home / "rules.yaml")
        talos = {"TALOSCONFIG": str(self.machines.write_talosconfig())}
        shown = {
            "explain": await self.explain(name, f"--cloud-config={file}"),
            "render": await talos_ccm(
                self.home, self.server, "render", file, f"--from-cluster={name}", **talos
            ),
            "status": await talos_ccm(self.home, self.server, "status"),
        }
        return {command: result.out for command, result in shown.items()}

    async def kept(self, name: str) -> list[Any]:
        """What `explain` tells programs."""
        kept: list[Any] = (await self.explained(name, f"--cloud-config={self.home / 'rules.yaml'}"))[
            "keptKeys"
        ]
        return kept


@pytest.fixture
async def operator(
    tmp_path: Path, control_plane: ControlPlane, kubelets: KubeletFleet, machines: MachineFleet
) -> AsyncIterator[Operator]:
    operator = Operator("node", tmp_path, control_plane, machines, kubelets)
    (tmp_path / "rules.yaml").write_text(FILE)
    async with AsyncExitStack() as stack:
        for number, name in enumerate(("kept-new", "kept-old"), 1):
            machine = make_machine(name, f"10.233.0.{number}", platform="hcloud")
            await machines.put_machines(machine)
            stack.push_async_callback(machines.delete_machines, machine.id)
            provided = {PROVIDED_NODE_IP_ANNOTATION: machine.reachable_at[0]}
            initialized = {"annotations": provided, "is_uninitialized": False} if name == "kept-old" else {}
            await kubelets.join(SimKubelet.of_machine(machine, **initialized))
            stack.push_async_callback(kubelets.delete_node, name)
        flags = [f"--cloud-config={tmp_path / 'rules.yaml'}"]
        await stack.enter_async_context(
            run_services(
                tmp_path / "services",
                control_plane,
                kubelets,
                machines,
                nats_url="",
                all_in_one=True,
                flags=flags,
            )
        )
        yield operator


async def until(operator: Operator, name: str, has: Any, what: str) -> None:
    async def holds() -> bool:
        return bool(has(await operator.node(name)))

    await wait_until(holds, what)


def is_tainted(node: Any) -> bool:
    return any(each["key"] == AGENT for each in node["spec"].get("taints", []))


async def test_what_a_person_overwrites_is_told_everywhere_and_the_printed_command_hands_it_back(
    operator: Operator,
):
    name = "kept-new"
    await until(
        operator, name, lambda node: ZONE in node["metadata"]["labels"] and is_tainted(node), "it joins"
    )
    zone = (await operator.node(name))["metadata"]["labels"][ZONE]
    await operator.kubectl(f"kubectl label node {name} {ZONE}=foo")
    await operator.kubectl(f"kubectl annotate node {name} {NOTE}=theirs")
    for command, shown in (await operator.ask_everything(name)).items():
        assert f"label {ZONE} is foo instead of {zone}: set by kubectl-label, 2" in shown, (command, shown)
        assert f"annotation {NOTE} is theirs instead of ours: set by kubectl-annotate, 2" in shown, command
        assert not any(words in shown for words in ("healthy", "No changes\n", "no problems")), command
    for report in await operator.kept(name):
        await operator.kubectl(report["fix"])

    def is_back(node: Any) -> bool:
        metadata = node["metadata"]
        return (metadata["labels"].get(ZONE), metadata["annotations"].get(NOTE)) == (zone, "ours")

    await until(operator, name, is_back, "the labeler has set both keys again")
    assert await operator.kept(name) == []


async def test_a_withheld_taint_is_told_and_set_once_by_the_printed_command(operator: Operator):
    name = "kept-old"
    await until(
        operator, name, lambda node: NOTE in node["metadata"]["annotations"], "the labeler manages it"
    )
    assert not is_tainted(await operator.node(name))
    opt_in = f"kubectl annotate node {name} {APPLY_TAINTS_ANNOTATION}=true"
    for command, shown in (await operator.ask_everything(name)).items():
        assert f"taint {AGENT}:NoSchedule (waiting) is not set" in shown, (command, shown)
        assert opt_in in shown, command
    events = (
        f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name},reason=TaintWithheld"
    )

    async def is_reported() -> bool:
        return bool((await operator.kubelets.request("GET", events)).body["items"])

    await wait_until(is_reported, "the Event reports it")
    await operator.kubectl(opt_in)
    await until(operator, name, is_tainted, "the labeler has set the taint")
    assert APPLY_TAINTS_ANNOTATION not in (await operator.node(name))["metadata"]["annotations"]
    assert await operator.kept(name) == []
    await operator.kubectl(f"kubectl taint node {name} {AGENT}:NoSchedule-")
    await operator.kubectl(opt_in)

    def is_met(node: Any) -> bool:
        return APPLY_TAINTS_ANNOTATION not in node["metadata"]["annotations"]

    await until(operator, name, is_met, "the labeler has removed the annotation")
    assert not is_tainted(await operator.node(name))
