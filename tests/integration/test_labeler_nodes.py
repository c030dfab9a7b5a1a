"""Each platform: the Node on the real API server is as the reference describes.

The labeler runs on a real bus with only its own permissions; kubelets join under NodeRestriction.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import UNINITIALIZED_TAINT, Node
from libs.common.contract.services import LABELER
from libs.common.kube.api import KubeApi
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.nats_server import NatsServer
from tests.builders import make_facts
from tests.bus_actors import wait_until
from tests.clocks import ManualClock
from tests.flow_actors import FlowActor
from tests.integration.service_api import open_api_of
from tests.labeler_actors import run_labeler
from tests.node_plans import exclude_record_label
from tests.platform_cases import PLATFORMS, PlatformCase

OF_A_PERSON = {"example.com/rack": "r-7"}


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """One Node before and after the labeler reconciled it."""

    before: Node
    after: Node


@dataclass
class Fleet:
    """Nodes that have joined, and the labeler's results on them."""

    kubelets: KubeletFleet
    kube: KubeApi
    flow: FlowActor
    names: list[str] = field(default_factory=list)

    async def join(self, name: str) -> Node:
        """Join a kubelet and return the Node as the watcher would observe it."""
        self.names.append(name)
        kubelet = SimKubelet(name=name, ips=("10.0.0.5",), labels=OF_A_PERSON)
        await self.kubelets.join(kubelet)
        return await self.kube.get_node(name)

    async def initialize(self, name: str, facts: MachineFacts) -> Joined:
        """Join, publish the machine's facts and wait for the labeler."""
        before = await self.join(name)
        await self.flow.enrich(before, facts)
        await self.flow.wait_for_decision(name, "initialized")
        return Joined(before=before, after=await self.kube.get_node(name))

    async def events(self, name: str) -> list[dict[str, Any]]:
        """Return the labeler's Events on a Node."""
        selector = f"involvedObject.name={name},source=cloud-node-controller"
        path = f"/api/v1/namespaces/default/events?fieldSelector={selector}"
        return list((await self.kubelets.request("GET", path)).body["items"])

    async def has_events(self, name: str) -> bool:
        """Return whether one of them exists."""
        return bool(await self.events(name))


@pytest.fixture(scope="module")
async def flow(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[FlowActor, str]]:
    async with (
        NatsServer.start(tmp_path_factory.mktemp("labeler-nats")) as server,
        FlowActor.open_led(server.url) as running,
    ):
        yield running, server.url


@pytest.fixture(scope="module")
async def fleet(
    control_plane: ControlPlane, kubelets: KubeletFleet, flow: tuple[FlowActor, str]
) -> AsyncIterator[Fleet]:
    running, url = flow
    clock = ManualClock(datetime.now(UTC))
    async with (
        open_api_of(LABELER, control_plane, kubelets) as kube,
        run_labeler(url, kube, clock=clock, cluster_name="prod", cluster_name_fallbacks=True),
    ):
        fleet = Fleet(kubelets, kube, running)
        yield fleet
        await asyncio.gather(*(kubelets.delete_node(name) for name in fleet.names))


@pytest.mark.parametrize("case", PLATFORMS, ids=lambda case: case.platform)
async def test_every_platform_ends_as_the_reference_describes_it(fleet: Fleet, case: PlatformCase):
    name = f"lab-platform-{case.platform.lower()}"
    joined = await fleet.initialize(name, case.facts(name))
    node = joined.after
    assert node.spec.provider_id == case.expected_provider_id
    assert exclude_record_label(node.labels) == {**joined.before.labels, **case.expected_labels("prod")}
    assert UNINITIALIZED_TAINT not in {taint.key for taint in node.spec.taints}
    addresses = [("InternalIP", "10.0.0.5"), ("Hostname", name)]
    hostname = case.metadata.hostname
    addresses += [("InternalDNS", hostname)] if hostname else []
    assert [(each.type, each.address) for each in node.status.addresses] == addresses
    assert node.annotations.items() >= joined.before.annotations.items()


async def test_the_synced_event_is_the_references(fleet: Fleet):
    joined = await fleet.initialize("lab-event", make_facts(node_name="lab-event"))
    await wait_until(lambda: fleet.has_events("lab-event"), "its event")
    [event] = await fleet.events("lab-event")
    assert (event["reason"], event["message"], event["type"]) == (
        "Synced", "Node synced successfully", "Normal",
    )  # fmt: skip
    assert event["source"]["component"] == event["reportingComponent"] == "cloud-node-controller"
    assert event["involvedObject"]["uid"] == joined.after.uid


async def test_a_built_in_label_follows_the_machine_until_a_person_changes_it(fleet: Fleet):
    case = next(case for case in PLATFORMS if case.platform == "hcloud")
    facts = case.facts("lab-changed")
    platform = msgspec.structs.replace(facts.platform, provider_id="hcloud://8")
    facts = msgspec.structs.replace(facts, platform=platform)
    joined = await fleet.initialize("lab-changed", facts)
    body = {"metadata": {"labels": {"topology.kubernetes.io/zone": "elsewhere", "example.com/rack": "r-8"}}}
    await fleet.kubelets.request(
        "PATCH", "/api/v1/nodes/lab-changed", body=body, content_type="application/merge-patch+json"
    )
    changed = await fleet.kube.get_node("lab-changed")
    assert changed.labels["topology.kubernetes.io/zone"] == "elsewhere"
    await fleet.flow.enrich(changed, facts)
    await fleet.flow.wait_for_decision("lab-changed", "updated")
    assert exclude_record_label((await fleet.kube.get_node("lab-changed")).labels) == exclude_record_label(
        changed.labels
    )
    removed = {"metadata": {"labels": {"topology.kubernetes.io/zone": None}}}
    await fleet.kubelets.request(
        "PATCH", "/api/v1/nodes/lab-changed", body=removed, content_type="application/merge-patch+json"
    )
    await fleet.flow.enrich(await fleet.kube.get_node("lab-changed"), facts)
    await fleet.flow.wait_until_handled()
    after = (await fleet.kube.get_node("lab-changed")).labels
    assert exclude_record_label(after) == exclude_record_label(joined.after.labels) | {
        "example.com/rack": "r-8"
    }
