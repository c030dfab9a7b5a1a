"""Nodes and requests as they are read, and the patches that change a Node."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.node import (
    BLOCKED_CONDITION,
    Node,
    NodeAddress,
    NodeCondition,
    Taint,
    is_same_object,
    trim_node,
)
from libs.common.contract.node_patch import NodeChanges, build_node_patch, build_status_patch
from libs.common.contract.signing_request import (
    REQUEST_LIMIT,
    SigningRequest,
    SigningRequestCondition,
    trim_signing_request,
)
from libs.common.contract.subjects import OBSERVED_NODE, is_publishable_name, object_name_in
from tests.builders import NOW, UNINITIALIZED, make_node, make_request
from tests.in_memory_api import PatchFailed, apply_json_patch

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
    assert is_same_object(before, trim_node(msgspec.json.decode(later, type=Node)))


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
    assert not is_same_object(trim_node(before), trim_node(after))


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


# ---- patches


KEYS = st.sampled_from(["a", "b", "example.com/c", "tilde~d", "e~1/f"])
VALUES = st.text("xyz", max_size=3)
LABELS = st.dictionaries(KEYS, VALUES, max_size=5)
TAINTS = st.lists(
    st.builds(
        Taint,
        key=st.sampled_from("kl"),
        value=VALUES,
        effect=st.sampled_from(["NoSchedule", "NoExecute"]),
        time_added=st.sampled_from(["", "2026-01-01T00:00:00Z"]),
    ),
    max_size=4,
    unique_by=lambda taint: (taint.key, taint.effect),
).map(tuple)


def document(node: Node) -> dict:
    return msgspec.json.decode(msgspec.json.encode(node), type=dict)


def read(plain: dict) -> Node:
    return msgspec.convert(plain, Node)


@given(LABELS, st.dictionaries(KEYS, st.none() | VALUES, max_size=5))
def test_labels_end_as_wanted_and_others_stay_byte_identical(current, wanted):
    node = make_node(labels=current)
    after = read(apply_json_patch(document(node), build_node_patch(node, NodeChanges(labels=wanted)))).labels
    assert after == {k: v for k, v in (current | wanted).items() if v is not None}


@given(LABELS, st.dictionaries(KEYS, st.none() | VALUES, max_size=5), TAINTS, TAINTS, TAINTS)
def test_a_patch_that_was_carried_out_has_nothing_left_to_do(current, labels, taints, wanted, unwanted):
    doomed = {(t.key, t.effect) for t in unwanted}
    changes = NodeChanges(
        labels=labels,
        provider_id="talos://metal/10.0.0.5",
        pod_cidrs=("10.244.0.0/24",),
        set_taints=tuple(t for t in wanted if (t.key, t.effect) not in doomed),
        remove_taints=unwanted,
    )
    node = make_node(labels=current, taints=taints)
    after = read(apply_json_patch(document(node), build_node_patch(node, changes)))
    assert build_node_patch(after, changes) == []
    assert {(t.key, t.effect) for t in after.spec.taints}.isdisjoint(doomed)
    assert after.spec.pod_cidr == "10.244.0.0/24"


@given(TAINTS, TAINTS)
def test_taints_that_are_not_named_keep_value_place_and_time(taints, unwanted):
    node = make_node(taints=taints)
    after = read(
        apply_json_patch(document(node), build_node_patch(node, NodeChanges(remove_taints=unwanted)))
    )
    doomed = {(t.key, t.effect) for t in unwanted}
    assert after.spec.taints == tuple(t for t in taints if (t.key, t.effect) not in doomed)


@pytest.mark.parametrize(
    ("planned_on", "changes", "meanwhile"),
    [
        (make_node(labels={"a": "1"}), NodeChanges(labels={"a": "2"}), make_node(labels={"a": "theirs"})),
        (
            make_node(labels={"a": "1"}),
            NodeChanges(labels={"b": "2"}),
            make_node(labels={"a": "1", "b": "theirs"}),
        ),
        (make_node(labels={}), NodeChanges(labels={"a": "2"}), make_node(labels={"b": "theirs"})),
        (make_node(), NodeChanges(provider_id="talos://metal/1"), make_node(provider_id="hcloud://1")),
        (make_node(), NodeChanges(pod_cidrs=("10.0.0.0/24",)), make_node(pod_cidrs=("10.1.0.0/24",))),
        (make_node(), NodeChanges(remove_taints=(UNINITIALIZED,)), make_node(taints=())),
        (
            make_node(),
            NodeChanges(remove_taints=(UNINITIALIZED,)),
            make_node(taints=(Taint(key="x", effect="NoSchedule"), UNINITIALIZED)),
        ),
        (make_node(), NodeChanges(labels={"a": "1"}), make_node(uid="another")),
    ],
    ids=[
        "label-changed",
        "label-appeared",
        "map-appeared",
        "provider-id",
        "pod-cidrs",
        "taint-gone",
        "taint-moved",
        "another-node",
    ],
)
def test_a_patch_planned_on_an_old_view_fails_as_a_whole(planned_on, changes, meanwhile):
    with pytest.raises(PatchFailed):
        apply_json_patch(document(meanwhile), build_node_patch(planned_on, changes))


def test_immutable_fields_are_never_written_over():
    node = make_node(provider_id="hcloud://1", pod_cidrs=("10.1.0.0/24",))
    assert build_node_patch(node, NodeChanges(provider_id="talos://x", pod_cidrs=("10.2.0.0/24",))) == []


def test_a_status_that_is_as_wanted_gives_no_patch():
    addresses = (NodeAddress(type="InternalIP", address="10.0.0.5"),)
    condition = NodeCondition(
        type=BLOCKED_CONDITION, status="True", reason="TalosRefused", message="old text"
    )
    node = make_node(addresses=addresses, conditions=(condition,))
    assert build_status_patch(node, addresses=addresses, set_condition=condition, now=NOW) == {}
    other_text = msgspec.structs.replace(condition, message="another text, same reason")
    patch = build_status_patch(node, addresses=addresses, set_condition=other_text, now=NOW)
    assert [each["message"] for each in patch["status"]["conditions"]] == [other_text.message]
    assert build_status_patch(make_node(), remove_condition=BLOCKED_CONDITION, now=NOW) == {}


def test_a_status_patch_is_fenced_by_the_uid_and_replaces_addresses_as_a_whole():
    node = make_node(
        conditions=(NodeCondition(type=BLOCKED_CONDITION, status="True", reason="TalosRefused"),)
    )
    addresses = (
        NodeAddress(type="InternalIP", address="10.0.0.5"),
        NodeAddress(type="InternalIP", address="fd00::5"),
    )
    assert build_status_patch(node, addresses=addresses, remove_condition=BLOCKED_CONDITION, now=NOW) == {
        "metadata": {"uid": "uid-1"},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": "10.0.0.5"},
                {"type": "InternalIP", "address": "fd00::5"},
                {"$patch": "replace"},
            ],
            "conditions": [{"type": BLOCKED_CONDITION, "$patch": "delete"}],
        },
    }


# ---- certificate requests


FROM_KUBERNETES = b"""{"kind": "CertificateSigningRequest", "apiVersion": "certificates.k8s.io/v1",
 "metadata": {"name": "csr-x", "uid": "u", "resourceVersion": "7", "managedFields": [], "labels": {"a": "b"}},
 "spec": {"request": "LS0tLS1CRUdJTg==", "signerName": "kubernetes.io/kubelet-serving",
  "username": "system:node:web-1", "uid": "1", "groups": ["system:nodes"], "extra": {"x": ["y"]},
  "usages": ["server auth"], "expirationSeconds": 600},
 "status": {"conditions": [{"type": "Approved", "status": "True", "reason": "r", "lastUpdateTime": null}],
  "certificate": "LS0tLS1CRUdJTg=="}}"""


def test_a_request_decodes_from_what_the_api_server_says():
    request = msgspec.json.decode(FROM_KUBERNETES, type=SigningRequest)
    assert request.spec.request == b"-----BEGIN"
    assert (request.node_name, request.resource_version_number, request.spec.expiration_seconds) == (
        "web-1",
        7,
        600,
    )
    assert request.is_kubelet_serving
    assert not request.is_pending


def test_what_is_published_says_that_there_is_a_certificate_but_not_which():
    read = trim_signing_request(msgspec.json.decode(FROM_KUBERNETES, type=SigningRequest))
    assert (read.status.certificate, read.status.issued, read.metadata.labels) == ("", True, {})
    assert trim_signing_request(read) == read


def test_an_oversized_request_is_published_without_it():
    fits, too_large = make_request(pem=b"x" * REQUEST_LIMIT), make_request(pem=b"x" * (REQUEST_LIMIT + 1))
    assert trim_signing_request(fits).spec.request == fits.spec.request
    assert trim_signing_request(too_large).spec.request == b""


@pytest.mark.parametrize("username", ["system:node:", "system:nodes:web-1", "web-1", "", "System:node:web-1"])
def test_a_user_that_is_no_node_has_no_node_name(username: str):
    assert make_request(username=username).node_name == ""
    assert not make_request(username=username).is_kubelet_serving


@pytest.mark.parametrize("kind", ["Approved", "Denied", "Failed"])
def test_a_request_is_pending_until_somebody_has_decided_it(kind: str):
    assert make_request().is_pending
    assert not make_request(conditions=(SigningRequestCondition(type=kind),)).is_pending
    assert not trim_signing_request(make_request(certificate="LS0t")).is_pending
