"""What a Node gets on each platform of the testbed, and the record of what the labeler has set on it."""

from typing import Any

import msgspec

from libs.common.machine import MachineFacts
from libs.common.node import Node
from libs.common.patch import NodeChanges
from libs.testbed.platform_samples import samples_text
from services.labeler.owned import Owned, digest, mark, written
from services.labeler.plan import Global, plan_node
from tests.builders import a_node, some_facts
from tests.contract.interface_snapshot import assert_unchanged
from tests.planned import carried_out, document_of


def test_the_provider_id_labels_and_addresses_of_a_node_on_each_platform():
    found: dict[str, Any] = {}
    for sample in msgspec.json.decode(samples_text())["nodes"]:
        node = msgspec.convert(sample["node"], Node)
        facts = msgspec.convert(sample["facts"], MachineFacts)
        plan = plan_node(node, facts, "nodename", Global())
        after = document_of(carried_out(node, plan))
        found[facts.platform.platform] = {
            "providerID": after["spec"].get("providerID", ""),
            "labels": after["metadata"]["labels"],
            "annotations": after["metadata"]["annotations"],
            "taints": after["spec"].get("taints", []),
            "addresses": after["status"]["addresses"],
            "waits": plan.blocked.reason if plan.blocked else "",
        }
    assert_unchanged("kubernetes_platforms", found)


def test_the_record_of_what_was_set_and_its_digest():
    owned = Owned(
        machine={"topology.kubernetes.io/zone": "fsn1-dc14"},
        labels={"team": "web", "example.com/theirs": None},
        annotations={"example.com/long": mark("ü" * 64), "example.com/odd": mark("sha256:x")},
        taints={"example.com/agent:NoSchedule": "wait"},
        provider_id="hcloud://7",
    )
    text = written(owned)
    assert_unchanged("kubernetes_record", {"annotation": text, "label": digest(text)})


def test_what_the_machine_config_sets_is_left_to_it():
    node = a_node(
        labels={"topology.kubernetes.io/zone": "rack-7"},
        annotations={"talos.dev/owned-labels": '["topology.kubernetes.io/zone"]'},
    )
    facts = some_facts(platform="hcloud", provider_id="hcloud://7", zone="fsn1-dc14", region="eu-central")
    left = plan_node(node, facts, "nodename", Global()).changes
    put_back = a_node(
        annotations={"talos.dev/owned-taints": '["node.cloudprovider.kubernetes.io/uninitialized"]'}
    )
    waits = plan_node(put_back, facts, "nodename", Global())
    assert waits.changes == NodeChanges()
    found = {"labels": left.labels, "waits": waits.blocked.reason if waits.blocked else ""}
    assert_unchanged("kubernetes_left_to_the_machine_config", found)
