"""Nodes that --cloud-config excludes, on a real bus and an in-memory API server: no request."""

from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.cloud_config.model import CloudConfig
from libs.common.contract.controllers import CLOUD_NODE
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, Node, NodeAddress, NodeCondition
from libs.testbed.nats_server import NatsServer
from tests.builders import FAULT, make_facts, make_node
from tests.flow_actors import FlowActor
from tests.labeler_actors import InMemoryNodes, run_labeler

TEAM_A: Final = "ownership: {nodeSelector: [{matchExpressions: [{key: team, operator: In, values: [a]}]}]}"
TALOS_ONLY: Final = "ownership: {providerIDSchemes: [talos]}"
STALE = NodeCondition(type=BLOCKED_CONDITION, status="True", reason="TalosUnreachable", message="x")
WRONG = MachineFault(kind="wrong_machine", step="Nodename", endpoint="10.0.0.5", message="it is db-1")
THEIRS: Final = {"team": "b"}
ADDRESSES: Final = (
    NodeAddress(type="InternalIP", address="10.0.0.5"),
    NodeAddress(type="Hostname", address="web-1"),
)


def file(text: str) -> CloudConfig:
    return parse_cloud_config(text, "f")


STATES: Final[dict[str, tuple[Node, MachineFacts | MachineFault]]] = {
    "joining": (make_node(labels=THEIRS), make_facts()),
    "joining, its cloud has not answered": (make_node(labels=THEIRS), make_facts(platform="hcloud")),
    "blocked before": (make_node(labels=THEIRS, conditions=(STALE,)), make_facts()),
    "initialised, with our old condition": (make_node(labels=THEIRS, taints=(), conditions=(STALE,)), FAULT),
    "initialised, without labels": (
        make_node(labels=THEIRS, taints=(), provider_id="aws:///x/i-1"),
        make_facts(),
    ),
    "silent": (make_node(labels=THEIRS), FAULT),
    "another machine answers": (make_node(labels=THEIRS), WRONG),
    "its address is none": (make_node(labels=THEIRS, ip="web-1.example"), make_facts()),
    "its kubelet is not external": (make_node(labels=THEIRS, ip=""), make_facts()),
}


@pytest.mark.parametrize("state", STATES)
async def test_a_foreign_node_costs_no_request_whatever_its_state(
    state: str, flow: FlowActor, nats_server: NatsServer
):
    node, said = STATES[state]
    kube = InMemoryNodes(node)
    async with run_labeler(nats_server.url, kube, file=file(TEAM_A)):
        if isinstance(said, MachineFacts):
            await flow.enrich(node, said)
        else:
            await flow.publish_unreachable(node, said)
        decided = await flow.wait_for_decision("web-1", "not-ours")
        await flow.wait_until_handled()
    assert kube.requests == []
    assert 'ownership.nodeSelector does not select it: team is "b", not "a"' in decided.reason


async def test_when_the_file_gives_us_a_node_it_is_served_and_when_it_takes_it_back_left_as_it_is(
    flow: FlowActor, nats_server: NatsServer, tmp_path: Path
):
    path = tmp_path / "config.yaml"
    path.write_text(TEAM_A)
    node = make_node(labels=THEIRS)
    kube = InMemoryNodes(node)
    given: dict[str, Any] = {
        "cloud_config": path,
        "cloud_config_poll_seconds": 0.05,
        "rollout_spread_seconds": 0.0,
    }
    async with run_labeler(nats_server.url, kube, file=file(TEAM_A), **given):
        await flow.enrich(node, make_facts())
        await flow.wait_for_decision("web-1", "not-ours")
        path.write_text(TEAM_A.replace("[a]", "[b]"))
        await flow.wait_for_decision("web-1", "initialized")
        path.write_text(TEAM_A)
        await flow.wait_for_decision("web-1", "not-ours")
        asked = len(kube.list_writes())
        await flow.enrich(kube.node("web-1"), make_facts(platform="metal", zone="moved"))
        await flow.wait_until_handled()
    assert kube.node("web-1").is_initialized
    assert len(kube.list_writes()) - asked <= 1  # at most the Event of its initialisation
    assert "topology.kubernetes.io/zone" not in kube.node("web-1").labels


async def test_a_file_that_gives_a_node_away_between_two_writes_has_the_second_left_out(
    flow: FlowActor, nats_server: NatsServer, tmp_path: Path
):
    """Excluded between two writes: the addresses are written, but no label, providerID, taint or Event."""
    path = tmp_path / "config.yaml"
    path.write_text(TEAM_A)
    kube = InMemoryNodes(make_node(labels={"team": "a"}))
    given: dict[str, Any] = {
        "cloud_config": path,
        "cloud_config_poll_seconds": 3600.0,
        "rollout_spread_seconds": 0.0,
    }
    async with run_labeler(nats_server.url, kube, file=file(TEAM_A), **given) as labeler:
        theirs = msgspec.structs.replace(
            labeler._config_reloader.current(),
            ownership=file(TEAM_A.replace("[a]", "[b]")).ownership.for_controller(CLOUD_NODE),
        )
        kube.before = lambda resource: labeler._config_reloader._accept(theirs, warnings=())
        await flow.enrich(kube.node("web-1"), make_facts())
        await flow.wait_for_decision("web-1", "not-ours")
        await flow.wait_until_handled()
    assert kube.list_writes() == ["nodes/status"]
    assert not kube.node("web-1").is_initialized


async def test_a_node_that_is_relabelled_between_plan_and_write_is_not_written(
    flow: FlowActor, nats_server: NatsServer
):
    """The new label is not published yet: the patch tests the label by which the Node was selected."""
    node = make_node(labels={"team": "a"}, addresses=ADDRESSES)
    kube = InMemoryNodes(node)
    kube.change("web-1", labels=THEIRS)
    async with run_labeler(nats_server.url, kube, file=file(TEAM_A)):
        await flow.enrich(node, make_facts())
        await flow.wait_for_decision("web-1", "not-ours")
    assert kube.node("web-1").labels == THEIRS
    assert not kube.node("web-1").is_initialized
    assert kube.node("web-1").spec.provider_id == ""
    assert kube.events == []
