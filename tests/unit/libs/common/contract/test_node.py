"""The part of a Node that we read: what counts as news."""

import msgspec
import pytest

from libs.common.contract.node import Node, NodeCondition, is_same_node, trim_node
from libs.common.contract.subjects import OBSERVED_NODE, is_publishable_name, object_name_in
from tests.builders import make_node

FROM_THE_API = b"""{"kind":"Node","apiVersion":"v1",
"metadata":{"name":"cp.example.com","uid":"u","resourceVersion":"7",
"creationTimestamp":"2026-03-01T12:00:00Z","labels":{"a":"b"},
"managedFields":[{"manager":"kubelet"}],
"annotations":{"alpha.kubernetes.io/provided-node-ip":"10.0.0.5"}},
"spec":{"podCIDR":"10.244.0.0/24","podCIDRs":["10.244.0.0/24"],"providerID":"aws:///a/i-1",
"taints":[{"key":"k","effect":"NoExecute","timeAdded":"2026-03-01T12:00:00Z"}]},
"status":{"capacity":{"cpu":"4"},"conditions":[
{"type":"Ready","status":"True","lastHeartbeatTime":"2026-03-01T12:00:00Z","lastTransitionTime":"2026-03-01T11:00:00Z",
"reason":"KubeletReady","message":"ok"},{"type":"DiskPressure","status":"False"}],
"addresses":[{"type":"InternalIP","address":"10.0.0.5"}],
"nodeInfo":{"machineID":"m","systemUUID":"4c4c4544","kubeletVersion":"v1.36.0"},"images":[{"names":["x"]}]}}"""


def test_a_node_is_read_straight_from_the_api_servers_bytes():
    node = msgspec.json.decode(FROM_THE_API, type=Node)
    assert (node.name, node.spec.provider_id, node.spec.pod_cidrs) == (
        "cp.example.com", "aws:///a/i-1", ("10.244.0.0/24",),
    )  # fmt: skip
    assert node.spec.taints[0].time_added == "2026-03-01T12:00:00Z"
    assert node.status.node_info.system_uuid == "4c4c4544"
    assert node.provided_node_ip == "10.0.0.5"
    assert node.is_initialized


@pytest.mark.parametrize("time", [b"0000-01-01T00:00:00Z", b"10000-01-01T11:59:59Z"])
def test_a_kubelet_can_make_its_node_unreadable_by_no_time_that_kubernetes_takes(time: bytes):
    node = msgspec.json.decode(FROM_THE_API.replace(b"2026-03-01T11:00:00Z", time), type=Node)
    assert msgspec.json.decode(msgspec.json.encode(node), type=Node) == node


def test_a_heartbeat_is_no_news():
    before = trim_node(msgspec.json.decode(FROM_THE_API, type=Node))
    later = FROM_THE_API.replace(b'"lastHeartbeatTime":"2026-03-01T12', b'"lastHeartbeatTime":"2026-03-01T13')
    later = later.replace(b'"resourceVersion":"7"', b'"resourceVersion":"8"').replace(
        b'"cpu":"4"', b'"cpu":"5"'
    )
    assert is_same_node(before, trim_node(msgspec.json.decode(later, type=Node)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (make_node(), make_node(labels={"new": "label"})),
        (make_node(), make_node(annotations={"new": "annotation"})),
        (make_node(), make_node(taints=())),
        (make_node(), make_node(uid="another")),
        (make_node(), make_node(conditions=(NodeCondition(type="Ready", status="True"),))),
    ],
)
def test_what_we_act_on_is_news(before, after):
    assert not is_same_node(trim_node(before), trim_node(after))


def test_other_peoples_large_state_is_not_carried_along():
    node = make_node(
        annotations={
            "big": "x" * 5000,
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
            "node.alpha.kubernetes.io/ttl": "15",
            "ok": "1",
        }
    )
    assert set(trim_node(node).annotations) == {"alpha.kubernetes.io/provided-node-ip", "ok"}


def test_what_the_machine_config_owns_is_carried_along_however_long_the_list_is():
    keys = "[" + ",".join(f'"example.com/key-{i}"' for i in range(100)) + "]"
    node = trim_node(make_node(annotations={"talos.dev/owned-labels": keys}))
    assert node.annotations["talos.dev/owned-labels"] == keys


def test_a_name_with_dots_is_found_again_in_its_subject():
    assert object_name_in(f"{OBSERVED_NODE}.cp.example.com", OBSERVED_NODE) == "cp.example.com"
    with pytest.raises(ValueError, match="names nothing"):
        object_name_in(OBSERVED_NODE, OBSERVED_NODE)


@pytest.mark.parametrize(
    "name",
    ["", "a b", "a..b", ".a", "a.", "a*", ">", "a\n", "a\x00", "a\x1b[31m", "a\u2028b", "\u202ea", "a" * 254],
)
def test_a_name_that_would_break_a_subject_is_not_publishable(name):
    assert not is_publishable_name(name)


@pytest.mark.parametrize("name", ["a", "a.b", "ip-10-0-0-1.eu.compute.internal", "a" * 253])
def test_kubernetes_names_are_publishable(name):
    assert is_publishable_name(name)
