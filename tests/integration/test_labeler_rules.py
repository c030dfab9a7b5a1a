"""Rules on the real API server: what a kubelet writes to its own Node protects no key from them.

All commands tell the keys that rules leave to others, and what they print works.
"""

import shlex
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.node import FIELD_OWNERSHIP_DIGEST_LABEL, PROVIDED_NODE_IP_ANNOTATION, Node
from libs.common.contract.services import LABELER
from libs.common.kube.api import KubeApi
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import MERGE, KubeletFleet, RequestRejected, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, make_machine
from libs.testbed.nats_server import NatsServer
from tests.builders import make_facts
from tests.bus_actors import wait_until
from tests.clocks import ManualClock
from tests.flow_actors import FlowActor
from tests.integration.operator_shell import Cluster, talos_ccm
from tests.integration.service_cluster import open_api_of, run_services
from tests.labeler_actors import run_labeler

RESTRICTED = "tier.node-restriction.kubernetes.io/level"
QUARANTINED = f"""
transformations:
- name: quarantine
  labels: {{{RESTRICTED}: quarantine}}
  taints: {{example.com/apart: "yes:NoExecute"}}
"""
NONE = ""


@dataclass
class Site:
    """A real API server, and labelers that run one after the other, each with its own rules."""

    kubelets: KubeletFleet
    kube: KubeApi
    flow: FlowActor
    url: str

    async def obey(self, name: str, rules: str) -> Node:
        """Run a labeler with these rules, publish the machine's facts, and return the reconciled Node.

        The restarted labeler knows only the Nodes.
        """
        file = parse_cloud_config(rules, "ccm-config.yaml")
        clock = ManualClock(datetime.now(UTC))
        await self.flow.publish_leading()  # it is forgotten after 10 s
        async with run_labeler(self.url, self.kube, clock=clock, file=file):
            before = await self.kube.get_node(name)
            await self.flow.enrich(before, make_facts(node_name=name))
            await self.flow.wait_until_handled()
            return await self.kube.get_node(name)


@pytest.fixture(scope="module")
async def site(
    control_plane: ControlPlane, kubelets: KubeletFleet, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(NatsServer.start(tmp_path_factory.mktemp("rules-nats")))
        flow = await stack.enter_async_context(FlowActor.open_led(server.url))
        kube = await stack.enter_async_context(open_api_of(LABELER, control_plane, kubelets))
        yield Site(kubelets, kube, flow, server.url)


async def test_a_kubelet_cannot_keep_what_no_kubelet_may_write_by_an_annotation_of_its_own_node(site: Site):
    name, path = "rules-veto", "/api/v1/nodes/rules-veto"
    annotations = {
        PROVIDED_NODE_IP_ANNOTATION: "10.0.0.5",
        "talos.dev/owned-labels": f'["{RESTRICTED}"]',
        "talos.dev/owned-taints": '["example.com/apart"]',
    }
    await site.kubelets.join(SimKubelet(name=name))
    body = {"metadata": {"annotations": annotations}}
    answer = await site.kubelets.request("PATCH", path, as_node=name, body=body, content_type=MERGE)
    assert answer.status == 200
    node = await site.obey(name, QUARANTINED)
    assert (node.is_initialized, node.labels.get(RESTRICTED)) == (True, "quarantine")
    assert "example.com/apart" in {taint.key for taint in node.spec.taints}
    node = await site.obey(name, QUARANTINED.replace("quarantine", "gold"))
    assert node.labels.get(RESTRICTED) == "gold"
    node = await site.obey(name, NONE)
    assert RESTRICTED not in node.labels
    await site.kubelets.delete_node(name)


async def test_a_kubelet_cannot_register_with_a_digest_for_a_forged_record(site: Site):
    kubelet = SimKubelet(name="rules-forged", labels={FIELD_OWNERSHIP_DIGEST_LABEL: "x"})
    with pytest.raises(RequestRejected, match="not allowed to set the following labels"):
        await site.kubelets.join(kubelet)


NAME = "kept-new"
ZONE, NOTE = "topology.kubernetes.io/zone", "example.com/note"
FILE = f"""
ownership:
  nodeSelector: [{{matchExpressions: [{{key: metadata.name, operator: Regexp, values: ["^kept-"]}}]}}]
transformations:
- name: all
  annotations: {{{NOTE}: ours}}
"""


class Operator(Cluster):
    """A shell with `talos-ccm` and, as far as the printed commands need it, `kubectl`."""

    async def read_metadata(self) -> Any:
        return (await self.kubelets.request("GET", f"/api/v1/nodes/{NAME}")).body["metadata"]

    async def kubectl(self, command: str) -> None:
        """Send the request of kubectl's label or annotate."""
        kubectl, verb, kind, name, change = shlex.split(command)
        assert (kubectl, kind) == ("kubectl", "node")
        key, equals, value = change.removesuffix("-").partition("=")
        field = {"label": "labels", "annotate": "annotations"}[verb]
        body = {"metadata": {field: {key: value if equals else None}}}
        path = f"/api/v1/nodes/{name}?fieldManager=kubectl-{verb}"
        answer = await self.kubelets.request("PATCH", path, body=body, content_type=MERGE)
        assert answer.status == 200, answer.body

    async def ask_everything(self) -> dict[str, str]:
        """What the three commands show."""
        file = str(self.home / "rules.yaml")
        talos = {"TALOSCONFIG": str(self.machines.write_talosconfig())}
        shown = {
            "explain": await self.explain(NAME, f"--cloud-config={file}"),
            "render": await talos_ccm(
                self.home, self.server, "render", file, f"--from-cluster={NAME}", **talos
            ),
            "status": await talos_ccm(self.home, self.server, "status"),
        }
        return {command: result.out for command, result in shown.items()}

    async def kept(self) -> list[Any]:
        """What `explain` tells programs."""
        said = await self.explained(NAME, f"--cloud-config={self.home / 'rules.yaml'}")
        return list(said["keptKeys"])


@pytest.fixture
async def operator(
    tmp_path: Path, control_plane: ControlPlane, kubelets: KubeletFleet, machines: MachineFleet
) -> AsyncIterator[Operator]:
    operator = Operator("node", tmp_path, control_plane, machines, kubelets)
    (tmp_path / "rules.yaml").write_text(FILE)
    async with AsyncExitStack() as stack:
        machine = make_machine(NAME, "10.233.0.1", platform="hcloud")
        await machines.put_machines(machine)
        stack.push_async_callback(machines.delete_machines, machine.id)
        await kubelets.join(SimKubelet.of_machine(machine))
        stack.push_async_callback(kubelets.delete_node, NAME)
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


async def test_what_a_person_overwrites_is_told_everywhere_and_the_printed_command_hands_it_back(
    operator: Operator,
):
    async def has_zone() -> bool:
        return ZONE in (await operator.read_metadata())["labels"]

    await wait_until(has_zone, "it joins")
    zone = (await operator.read_metadata())["labels"][ZONE]
    await operator.kubectl(f"kubectl label node {NAME} {ZONE}=foo")
    await operator.kubectl(f"kubectl annotate node {NAME} {NOTE}=theirs")
    for command, shown in (await operator.ask_everything()).items():
        assert f"label {ZONE} is foo instead of {zone}: set by kubectl-label, 2" in shown, (command, shown)
        assert f"annotation {NOTE} is theirs instead of ours: set by kubectl-annotate, 2" in shown, command
        assert not any(words in shown for words in ("healthy", "No changes\n", "no problems")), command
    for report in await operator.kept():
        await operator.kubectl(report["fix"])

    async def is_back() -> bool:
        metadata = await operator.read_metadata()
        return (metadata["labels"].get(ZONE), metadata["annotations"].get(NOTE)) == (zone, "ours")

    await wait_until(is_back, "the labeler has set both keys again")
    assert await operator.kept() == []
