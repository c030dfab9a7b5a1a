"""Planning: built-in labels and the uninitialized taint, no key of another writer, no change twice."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.render.facts_file import load_samples
from libs.common.contract.events import NodeEnriched
from libs.common.contract.machine import AddressStatus, MachineFacts, PlatformMetadata
from libs.common.contract.node import (
    BLOCKED_CONDITION,
    FIELD_OWNERSHIP_ANNOTATION,
    FIELD_OWNERSHIP_DIGEST_LABEL,
    UNINITIALIZED_TAINT,
    Node,
    NodeAddress,
    NodeCondition,
    Taint,
)
from libs.common.contract.node_patch import build_status_patch
from services.labeler.core.plan.keys import INSTANCE_TYPE, LIFECYCLE, REGION, ZONE
from services.labeler.core.plan.node_ownership import find_foreign
from services.labeler.core.plan.plan import IN_SYNC_REASON, ClusterConfig, Plan, merge_plans
from services.labeler.core.plan.plan_node import plan_node
from tests.builders import NOW, UNINITIALIZED, make_facts, make_node
from tests.in_memory_api import apply_status_patch
from tests.node_plans import apply_plan, exclude_record_label, to_document

BLOCKED = NodeCondition(type=BLOCKED_CONDITION, status="True", reason="TalosUnreachable", message="m")
HCLOUD: dict[str, Any] = {
    "platform": "hcloud",
    "provider_id": "hcloud://7",
    "region": "eu-central",
    "zone": "fsn1-dc14",
    "instance_type": "cx22",
}


def planned(node: Node, facts: MachineFacts | None = None, **config: Any) -> Plan:
    return plan_node(node, facts or make_facts(**HCLOUD), "nodename", ClusterConfig(**config))


def settled(node: Node, facts: MachineFacts | None = None) -> Node:
    return apply_plan(node, planned(node, facts))


@pytest.mark.parametrize("sample", load_samples().values(), ids=list(load_samples()))
def test_every_platform_gives_its_built_in_labels_and_the_provider_id_of_its_native_controllers(
    sample: NodeEnriched,
):
    reported, node = sample.facts.platform, sample.node
    after = apply_plan(node, planned(node, sample.facts, cluster_name="prod"))
    labels = {
        "node.cloudprovider.kubernetes.io/platform": reported.platform,
        LIFECYCLE: "spot" if reported.spot else "",
        "node.cloudprovider.kubernetes.io/clustername": "prod",
        **dict.fromkeys(INSTANCE_TYPE, reported.instance_type),
        **dict.fromkeys(ZONE, reported.zone),
        **dict.fromkeys(REGION, reported.region),
    }
    expected = {key: value for key, value in labels.items() if value}
    assert exclude_record_label(after.labels) == {**node.labels, **expected}
    assert after.is_initialized
    fallback = f"talos://{reported.platform}/{sample.facts.node_ip}"
    assert after.spec.provider_id == (reported.provider_id or fallback)


def test_a_joining_node_gets_addresses_labels_provider_id_and_loses_its_taint():
    plan = planned(make_node())
    assert plan.outcome == "initialized"
    assert plan.summary == (
        "addresses InternalIP=10.0.0.5, Hostname=web-1",
        "label node.cloudprovider.kubernetes.io/platform=hcloud",
        "label node.kubernetes.io/instance-type=cx22",
        "label beta.kubernetes.io/instance-type=cx22",
        "label topology.kubernetes.io/zone=fsn1-dc14",
        "label failure-domain.beta.kubernetes.io/zone=fsn1-dc14",
        "label topology.kubernetes.io/region=eu-central",
        "label failure-domain.beta.kubernetes.io/region=eu-central",
        "providerID hcloud://7",
        "taint node.cloudprovider.kubernetes.io/uninitialized:NoSchedule removed",
    )


def test_a_node_that_says_what_its_machine_says_is_left_as_it_is():
    plan = planned(settled(make_node()))
    assert (plan.outcome, plan.reason, plan.summary) == ("unchanged", IN_SYNC_REASON, ())


def test_a_public_ipv6_address_that_a_router_advertises_later_is_added_and_blocks_nothing():
    advertised = AddressStatus(address="2001:db8:1::7/64", link="eth0", flags=0)
    facts = make_facts()
    later = msgspec.structs.replace(facts, addresses=(*facts.addresses, advertised))
    plan = planned(settled(make_node(), facts), later)
    expected = ("addresses InternalIP=10.0.0.5, ExternalIP=2001:db8:1::7, Hostname=web-1",)
    assert (plan.summary, plan.blocker, plan.notices) == (expected, None, ())


def test_the_configured_cluster_name_goes_before_the_one_that_talos_knows():
    facts = make_facts(cluster_name="of-talos")
    key = "node.cloudprovider.kubernetes.io/clustername"
    assert planned(make_node(), facts).changes.labels[key] == "of-talos"
    assert planned(make_node(), facts, cluster_name="prod").changes.labels[key] == "prod"


def test_a_machine_that_is_not_a_spot_one_any_more_loses_the_label():
    spot = settled(make_node(), make_facts(**HCLOUD, spot=True))
    assert spot.labels[LIFECYCLE] == "spot"
    assert exclude_record_label(planned(spot).changes.labels) == {LIFECYCLE: None}


def test_a_lifecycle_that_is_not_ours_stays():
    node = settled(make_node(labels={LIFECYCLE: "on-demand"}))
    assert node.labels[LIFECYCLE] == "on-demand"


def test_labels_that_the_machine_config_sets_are_left_to_it_and_named():
    node = make_node(
        labels={ZONE[0]: "rack-7"}, annotations={"talos.dev/owned-labels": f'["{ZONE[0]}","{REGION[0]}"]'}
    )
    plan = planned(node)
    assert ZONE[0] not in plan.changes.labels
    assert REGION[0] not in plan.changes.labels
    assert plan.changes.labels[ZONE[1]] == "fsn1-dc14"
    assert f"set by the machine config and left unchanged: {ZONE[0]}, {REGION[0]}" in plan.reason


@pytest.mark.parametrize("annotation", ["", "null", "{", '{"a":1}', "[1]", "[" * 5000])
def test_an_annotation_that_is_no_list_of_keys_owns_nothing(annotation: str):
    plan = planned(make_node(annotations={"talos.dev/owned-labels": annotation}))
    assert plan.changes.labels[ZONE[0]] == "fsn1-dc14"


@pytest.mark.parametrize(
    "value", ["Standard PC (i440FX + PIIX, 1996)", "a b", "-a", "a-", "a" * 64, "ä", "a\n", "a/b", "."]
)
def test_a_value_that_kubernetes_refuses_is_skipped_and_told_and_stops_nothing(value: str):
    plan = planned(make_node(), make_facts(**HCLOUD | {"zone": value}))
    assert plan.outcome == "initialized"
    assert not set(ZONE) & set(plan.changes.labels)
    assert plan.changes.labels[REGION[0]] == "eu-central"
    [notice] = plan.notices
    assert notice.reason == "LabelSkipped"
    assert ZONE[0] in notice.message
    assert repr(value[:100]) in notice.message


@pytest.mark.parametrize("effect", ["NoSchedule", "PreferNoSchedule", "NoExecute"])
def test_the_uninitialized_taint_goes_whatever_its_effect_and_others_stay(effect: str):
    other = Taint(key="example.com/mine", effect="NoSchedule")
    node = make_node(taints=(other, Taint(key=UNINITIALIZED_TAINT, value="true", effect=effect), other))
    assert settled(node).spec.taints == (other, other)


def test_a_taint_that_the_machine_config_puts_back_is_no_fight_but_a_reason():
    node = make_node(annotations={"talos.dev/owned-taints": f'["{UNINITIALIZED_TAINT}"]'})
    plan = planned(node)
    assert (plan.outcome, plan.summary) == ("blocked", ())
    assert plan.blocker is not None
    assert plan.blocker.reason == "TaintSetByMachineConfig"


def test_the_condition_goes_in_the_patch_that_writes_the_addresses():
    node = make_node(conditions=(NodeCondition(type="Ready", status="True"), BLOCKED))
    plan = planned(node)
    patch = build_status_patch(node, addresses=plan.addresses, remove_condition=BLOCKED_CONDITION, now=NOW)
    assert plan.removes_condition
    assert set(patch["status"]) == {"addresses", "conditions"}
    assert [c.type for c in apply_plan(node, plan).status.conditions] == ["Ready"]


def test_a_machine_known_by_its_uuid_is_initialized_and_told_of():
    plan = plan_node(make_node(), make_facts(node_name="talos-abc"), "system-uuid", ClusterConfig())
    assert plan.outcome == "initialized"
    [notice] = plan.notices
    assert (notice.reason, notice.is_warning) == ("RecognizedBySystemUUID", False)
    assert "'talos-abc'" in notice.message


def test_an_initialized_node_whose_metadata_are_incomplete_is_left_as_it_is():
    node = settled(make_node())
    plan = planned(node, make_facts(platform="hcloud", queried_at=NOW + timedelta(hours=1)))
    assert (plan.outcome, plan.summary) == ("unchanged", ())
    assert "left as it is" in plan.reason


EXTERNAL = NodeAddress(type="ExternalIP", address="203.0.113.7")
PUBLIC = AddressStatus(address="203.0.113.7/24", link="eth1")
OWN = AddressStatus(address="10.0.0.5/24", link="eth0")


@pytest.mark.parametrize("partial", [(), (AddressStatus(address="127.0.0.1/8", link="lo"),), (PUBLIC,)])
def test_a_partial_look_takes_no_address_from_a_node_that_has_them(partial: tuple[AddressStatus, ...]):
    good = make_facts(addresses=(OWN, PUBLIC, AddressStatus(address="2001:db8::7/64", link="eth1")))
    node = settled(make_node(), good)
    assert EXTERNAL in node.status.addresses
    plan = planned(node, make_facts(addresses=partial))
    assert (plan.outcome, plan.summary) == ("unchanged", ())


def test_a_complete_look_without_the_public_address_takes_it_away():
    node = settled(make_node(), make_facts(addresses=(OWN, PUBLIC)))
    plan = planned(node, make_facts(addresses=(OWN,)))
    assert plan.addresses is not None
    assert EXTERNAL not in plan.addresses


def test_a_joining_node_gets_what_is_known_even_from_a_partial_look():
    plan = planned(
        make_node(addresses=(NodeAddress(type="InternalIP", address="10.0.0.5"),)), make_facts(addresses=())
    )
    assert plan.outcome == "initialized"
    assert plan.addresses is not None


def test_a_kubelet_that_moved_to_another_address_is_followed_even_after_a_partial_look():
    node = settled(make_node(), make_facts())
    moved = msgspec.structs.replace(make_node(ip="10.0.0.9", taints=()), status=node.status, spec=node.spec)
    plan = planned(moved, make_facts(addresses=(), node_ip="10.0.0.9"))
    assert plan.addresses is not None
    assert plan.addresses[0] == NodeAddress(type="InternalIP", address="10.0.0.9")


def test_after_the_status_is_written_the_rest_is_told_together_with_it():
    node = make_node()
    first = planned(node)
    status_written = msgspec.convert(
        apply_status_patch(to_document(node), build_status_patch(node, addresses=first.addresses, now=NOW)),
        Node,
    )
    both = merge_plans(first, planned(status_written))
    assert both.summary == first.summary
    assert (both.outcome, both.reason) == (first.outcome, first.reason)


def test_a_node_that_somebody_else_initializes_meanwhile_is_not_told_as_ours():
    first = planned(make_node())
    assert merge_plans(first, planned(settled(make_node()))).outcome == "updated"


# ---- properties

TEXT = st.sampled_from(["", "a", "zone-1", "no good", "x" * 70, "eu"])
LABEL_KEYS = st.sampled_from(
    ["mine", "example.com/theirs", "kubernetes.io/hostname", ZONE[0], REGION[1], LIFECYCLE]
)
PLATFORM_NAMES = st.sampled_from(["metal", "hcloud", "aws", "nocloud", "azure", "unknown", ""])
IPS = st.sampled_from(["10.0.0.5", "10.0.0.5,2001:db8::5", "2001:db8::5", "nonsense", "", "127.0.0.1"])
METADATA = st.builds(
    PlatformMetadata,
    platform=PLATFORM_NAMES, hostname=TEXT, region=TEXT, zone=TEXT, instance_type=TEXT,
    provider_id=st.sampled_from(["", "hcloud://1", "aws:///z/i"]), spot=st.booleans(),
)  # fmt: skip
STATUSES = st.lists(
    st.builds(
        AddressStatus,
        address=st.sampled_from(
            ["10.0.0.5/24", "2001:db8::5/64", "203.0.113.7/24", "2001:db8:1::1/64", "junk"]
        ),
        link=st.sampled_from(["eth0", "external", "lo", "kubespan"]),
        flags=st.sampled_from([0, 1, 128]),
    ),
    max_size=5,
).map(tuple)
FACTS = st.builds(
    MachineFacts,
    platform=METADATA, addresses=STATUSES, node_name=st.just("web-1"),
    queried_at=st.sampled_from([NOW, NOW + timedelta(hours=1)]), node_ip=st.just("10.0.0.5"),
)  # fmt: skip
NODE_TAINTS = st.lists(
    st.sampled_from([
        UNINITIALIZED,
        Taint(key=UNINITIALIZED_TAINT, effect="NoExecute"),
        Taint(key="node.kubernetes.io/not-ready", effect="NoExecute", time_added="2026-03-01T12:00:00Z"),
        Taint(key="mine", effect="NoSchedule"),
    ]),
    unique=True, max_size=4,
).map(tuple)  # fmt: skip
NODE_ADDRESSES = st.lists(
    st.sampled_from([
        NodeAddress(type="InternalIP", address="10.0.0.5"),
        NodeAddress(type="InternalIP", address="2001:db8::5"),
        NodeAddress(type="ExternalIP", address="203.0.113.7"),
        NodeAddress(type="Hostname", address="web-1"),
    ]),
    unique=True, max_size=4,
).map(tuple)  # fmt: skip
NODES = st.builds(
    make_node,
    ip=IPS, labels=st.dictionaries(LABEL_KEYS, TEXT, max_size=5), taints=NODE_TAINTS,
    addresses=NODE_ADDRESSES,
    provider_id=st.sampled_from(["", "hcloud://1", "talos://metal/10.0.0.5", "kind://x"]),
    annotations=st.sampled_from([{}, {"talos.dev/owned-labels": f'["{ZONE[0]}","mine"]'}]),
    conditions=st.sampled_from([(), (BLOCKED,)]),
)  # fmt: skip
OURS = {
    *ZONE, *REGION, LIFECYCLE, "node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type",
    "node.cloudprovider.kubernetes.io/platform", "node.cloudprovider.kubernetes.io/clustername",
}  # fmt: skip


@given(NODES, FACTS)
def test_planning_again_on_the_result_finds_nothing_more_to_do(node: Node, facts: MachineFacts):
    plan = planned(node, facts)
    again = planned(apply_plan(node, plan), facts)
    assert again.summary == ()
    settled = "not-ours" if find_foreign(node, facts.platform) else "unchanged"
    assert again.outcome == (settled if plan.outcome in {"initialized", "updated"} else plan.outcome)


@given(NODES, FACTS)
def test_what_a_person_or_the_machine_config_has_set_stays_as_it_is(node: Node, facts: MachineFacts):
    after = apply_plan(node, planned(node, facts))
    kept = {
        key
        for key in node.labels
        if key not in OURS or key in node.annotations.get("talos.dev/owned-labels", "")
    }
    assert {key: after.labels.get(key) for key in kept} == {key: node.labels[key] for key in kept}
    assert {**after.annotations, FIELD_OWNERSHIP_ANNOTATION: ""} == {
        **node.annotations,
        FIELD_OWNERSHIP_ANNOTATION: "",
    }
    theirs = [taint for taint in node.spec.taints if taint.key != UNINITIALIZED_TAINT]
    assert [taint for taint in after.spec.taints if taint.key != UNINITIALIZED_TAINT] == theirs
    assert set(after.labels) <= set(node.labels) | OURS | {FIELD_OWNERSHIP_DIGEST_LABEL}
    assert not node.spec.provider_id or after.spec.provider_id == node.spec.provider_id


@given(NODES, FACTS)
def test_a_node_loses_its_taint_only_together_with_having_addresses_and_a_provider_id(
    node: Node, facts: MachineFacts
):
    plan = planned(node, facts)
    after = apply_plan(node, plan)
    if after.is_initialized and not node.is_initialized:
        assert plan.outcome == "initialized"
        assert after.status.addresses
        assert after.spec.provider_id
        assert after.find_condition(BLOCKED_CONDITION) is None


@given(NODES, FACTS)
def test_only_a_plan_of_ours_writes_anything(node: Node, facts: MachineFacts):
    plan = planned(node, facts)
    assert bool(plan.summary) == (plan.outcome in {"initialized", "updated"})
    assert (plan.blocker is not None) == (plan.outcome == "blocked")
