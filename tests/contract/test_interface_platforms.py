"""What a Node gets on each platform of the testbed, and the record of what the labeler has set on it."""

from typing import Any

import msgspec

from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node
from libs.common.contract.node_patch import NodeChanges
from services.labeler.plan import ClusterConfig, plan_node
from services.labeler.plan.ownership_record import (
    ManagedFields,
    compute_digest,
    encode_managed_fields,
    fingerprint_value,
)
from tests.builders import make_facts, make_node
from tests.contract.interface_snapshot import assert_unchanged
from tests.node_plans import apply_plan, to_document
from tools.platform_samples import render_samples


def test_the_provider_id_labels_and_addresses_of_a_node_on_each_platform():
    found: dict[str, Any] = {}
    for sample in msgspec.json.decode(render_samples())["nodes"]:
        node = msgspec.convert(sample["node"], Node)
        facts = msgspec.convert(sample["facts"], MachineFacts)
        plan = plan_node(node, facts, "nodename", ClusterConfig())
        after = to_document(apply_plan(node, plan))
        found[facts.platform.platform] = {
            "providerID": after["spec"].get("providerID", ""),
            "labels": after["metadata"]["labels"],
            "annotations": after["metadata"]["annotations"],
            "taints": after["spec"].get("taints", []),
            "addresses": after["status"]["addresses"],
            "waits": plan.blocker.reason if plan.blocker else "",
        }
    assert_unchanged("kubernetes_platforms", found)


def test_the_record_of_what_was_set_and_its_digest():
    owned = ManagedFields(
        machine={"topology.kubernetes.io/zone": "fsn1-dc14"},
        labels={"team": "web", "example.com/theirs": None},
        annotations={
            "example.com/long": fingerprint_value("ü" * 64),
            "example.com/odd": fingerprint_value("sha256:x"),
        },
        taints={"example.com/agent:NoSchedule": "wait"},
        provider_id="hcloud://7",
    )
    text = encode_managed_fields(owned)
    assert_unchanged("kubernetes_record", {"annotation": text, "label": compute_digest(text)})


def test_what_the_machine_config_sets_is_left_to_it():
    node = make_node(
        labels={"topology.kubernetes.io/zone": "rack-7"},
        annotations={"talos.dev/owned-labels": '["topology.kubernetes.io/zone"]'},
    )
    facts = make_facts(platform="hcloud", provider_id="hcloud://7", zone="fsn1-dc14", region="eu-central")
    left = plan_node(node, facts, "nodename", ClusterConfig()).changes
    put_back = make_node(
        annotations={"talos.dev/owned-taints": '["node.cloudprovider.kubernetes.io/uninitialized"]'}
    )
    waits = plan_node(put_back, facts, "nodename", ClusterConfig())
    assert waits.changes == NodeChanges()
    found = {"labels": left.labels, "waits": waits.blocker.reason if waits.blocker else ""}
    assert_unchanged("kubernetes_left_to_the_machine_config", found)
