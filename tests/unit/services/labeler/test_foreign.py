"""Nodes that --cloud-config excludes: nothing is planned for them, whatever their state is."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.controllers import CLOUD_NODE
from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, Node, NodeCondition, Taint
from services.labeler.core.plan.plan import ClusterConfig, NotOurs, Plan
from services.labeler.core.plan.plan_node import plan_unreachable_node
from services.labeler.core.rules.compilation import compile_rules
from services.labeler.core.uninitialized_nodes import UninitializedNode
from tests.builders import (
    FAULT,
    NOW,
    UNINITIALIZED,
    make_facts,
    make_node,
    make_node_enriched,
    make_unreachable,
)
from tests.node_plans import plan_for, plan_only_node

STALE = NodeCondition(type=BLOCKED_CONDITION, status="True", reason="TalosUnreachable", message="x")
HCLOUD = make_facts(platform="hcloud", provider_id="hcloud://7", region="eu")
METAL = make_facts()
ORACLE = make_facts(platform="oracle", provider_id="oci://ocid1.instance.oc1.phx.a", region="phx")
OURS = {"team": "a"}


def config_of(ownership: str, rules: str = "[]") -> ClusterConfig:
    file = parse_cloud_config(f"{{ownership: {ownership}, transformations: {rules}}}", "f")
    return ClusterConfig(rules=compile_rules(file), ownership=file.ownership.for_controller(CLOUD_NODE))


TEAM_A = config_of("{nodeSelector: [{matchExpressions: [{key: team, operator: In, values: [a]}]}]}")
TALOS_ONLY = config_of("{providerIDSchemes: [talos]}")
HCLOUD_ONLY = config_of("{providerIDSchemes: [hcloud]}")


def writes_nothing(plan: Plan) -> bool:
    return (
        plan.outcome == "not-ours"
        and not plan.summary
        and plan.blocker is None
        and plan.addresses is None
        and not plan.removes_condition
        and not plan.notices
    )


def test_a_node_that_the_selector_takes_in_is_initialised_as_ever():
    node = make_node(labels=OURS)
    changes, as_ever = plan_for(node, HCLOUD, TEAM_A).changes, plan_for(node, HCLOUD, ClusterConfig()).changes
    assert changes.guarded_labels == (*as_ever.guarded_labels, "team")  # a changed label makes the patch fail
    assert msgspec.structs.replace(changes, guarded_labels=as_ever.guarded_labels) == as_ever
    assert plan_for(node, HCLOUD, TEAM_A).outcome == "initialized"


def test_the_provider_id_that_the_machine_would_give_decides_before_any_is_written():
    assert writes_nothing(plan_for(make_node(), HCLOUD, TALOS_ONLY))
    assert plan_for(make_node(), METAL, TALOS_ONLY).changes.provider_id == "talos://metal/10.0.0.5"
    assert plan_for(make_node(), HCLOUD, HCLOUD_ONLY).changes.provider_id == "hcloud://7"


def test_the_provider_id_that_a_rule_would_give_decides_instead_of_the_machines():
    rules = "[{platformMetadata: {ProviderID: 'proxmox://x/{{ .Hostname }}'}}]"
    facts = make_facts(hostname="web-1")
    plan = plan_for(make_node(), facts, config_of("{providerIDSchemes: [proxmox]}", rules))
    assert plan.changes.provider_id == "proxmox://x/web-1"
    assert writes_nothing(plan_for(make_node(), facts, config_of("{providerIDSchemes: [talos]}", rules)))


def test_where_a_native_format_is_configured_a_node_waits_for_it_and_says_so_rather_than_get_talos():
    plan = plan_for(make_node(), METAL, HCLOUD_ONLY)
    assert plan.outcome == "blocked"
    assert plan.blocker is not None
    assert plan.blocker.reason == "NativeProviderIDMissing"
    assert "ownership.providerIDSchemes requires hcloud" in plan.blocker.message
    assert not plan.summary
    both = config_of("{providerIDSchemes: [hcloud, talos]}")
    assert plan_for(make_node(), METAL, both).changes.provider_id == "talos://metal/10.0.0.5"


def test_a_node_of_which_nobody_knows_yet_what_it_will_be_is_left_alone_by_schemes():
    booting = make_facts(platform="hcloud")
    for config in (TALOS_ONLY, HCLOUD_ONLY):
        assert writes_nothing(plan_for(make_node(), booting, config))
        silent = make_unreachable(make_node())
        assert writes_nothing(plan_unreachable_node(make_node(), silent, config))
        for event in (silent, None):
            late = plan_late(make_node(), event, config)
            assert late is not None
            assert writes_nothing(late)
    waiting = plan_late(make_node(), None, ClusterConfig())
    assert waiting is not None
    assert waiting.blocker is not None


def test_a_silent_machine_counts_by_what_it_last_said():
    said = msgspec.structs.replace(make_unreachable(make_node()), last_known=HCLOUD)
    assert writes_nothing(plan_unreachable_node(make_node(), said, TALOS_ONLY))
    assert plan_unreachable_node(make_node(), said, HCLOUD_ONLY).outcome == "blocked"


KUBELETS_OWN = {
    "a scheme of no cloud": (HCLOUD, "rack://7", "hcloud, rack"),
    "another cloud's scheme": (METAL, "vsphere://7", "talos, vsphere"),
    "no scheme": (ORACLE, "ocid1.instance.oc1.phx.a", "oci, none"),
}


@pytest.mark.parametrize(("facts", "existing", "schemes"), KUBELETS_OWN.values(), ids=KUBELETS_OWN)
def test_the_reason_names_the_setting_that_manages_the_node_of_a_kubelet_with_provider_id(
    facts: MachineFacts, existing: str, schemes: str
):
    node = make_node(provider_id=existing)
    plan = plan_for(node, facts, ClusterConfig())
    assert (plan.outcome, plan.summary) == ("not-ours", ())
    hint = "If no other controller manages the Node, set ownership.providerIDSchemes to the schemes of your"
    assert f"{hint} Nodes, such as [{schemes}]" in plan.reason
    assert plan.not_ours is not None
    assert plan.not_ours.notice is not None
    assert plan.reason in plan.not_ours.notice.message
    plan = plan_for(node, facts, config_of(f"{{providerIDSchemes: [{schemes}]}}"))
    assert (plan.outcome, plan.changes.provider_id) == ("initialized", None)


def test_a_scheme_that_no_file_can_list_is_not_suggested():
    reason = plan_for(make_node(provider_id="a b\n://x"), HCLOUD, ClusterConfig()).reason
    assert reason.endswith("set ownership.providerIDSchemes to the schemes of your Nodes")


def test_a_provider_id_without_the_scheme_is_the_machines_own_on_oracle_only():
    anything = config_of("{providerIDSchemes: [none, oci, hcloud]}")
    same = make_node(provider_id="ocid1.instance.oc1.phx.a")
    assert plan_for(same, ORACLE, anything).notices == ()
    for node, facts in ((make_node(provider_id="ocid1.other"), ORACLE), (make_node(provider_id="7"), HCLOUD)):
        assert [each.reason for each in plan_for(node, facts, anything).notices] == ["ProviderIDMismatch"]


def plan_late(node: Node, event: NodeEnriched | NodeUnreachable | None, config: ClusterConfig) -> Plan | None:
    """The monitor's plan for a Node that has waited for an hour."""
    return plan_only_node(UninitializedNode(node=node, since=0.0), event, config, at=3600.0)


# ---- every state

TAINTS = (UNINITIALIZED, Taint(key="node.cloudprovider.kubernetes.io/uninitialized", effect="NoExecute"))
NODES = st.builds(
    make_node,
    ip=st.sampled_from(["", "10.0.0.5", "not an address", "127.0.0.1"]),
    labels=st.sampled_from([{}, {"team": "b"}, {"kubernetes.io/hostname": "web-1", "team": "b"}]),
    provider_id=st.sampled_from(["", "hcloud://7", "talos://metal/10.0.0.5", "odd"]),
    taints=st.sets(st.sampled_from(TAINTS)).map(tuple),
    conditions=st.sampled_from([(), (STALE,)]),
)
FACTS = st.sampled_from(
    [
        METAL,
        HCLOUD,
        make_facts(platform="hcloud"),
        make_facts(platform=""),
        make_facts(node_name="other"),
        make_facts(queried_at=NOW + timedelta(days=1), platform="nocloud"),
    ]
)
FAULTS = st.sampled_from(
    [FAULT, MachineFault(kind="wrong_machine", step="Nodename", message="x"), MachineFault(
        kind="bad_node_ip", step="connect", message="x"
    )]
)  # fmt: skip


@settings(max_examples=100)
@given(node=NODES, facts=FACTS, fault=FAULTS, known=st.booleans())
def test_in_no_state_is_anything_planned_for_a_node_of_another_team(
    node: Node, facts: MachineFacts, fault: MachineFault, known: bool
):
    silent: NodeUnreachable = msgspec.structs.replace(
        make_unreachable(node), fault=fault, last_known=facts if known else None
    )
    said: NodeEnriched = make_node_enriched(node, facts)
    assert writes_nothing(plan_for(node, facts, TEAM_A))
    assert writes_nothing(plan_unreachable_node(node, silent, TEAM_A))
    for event in (said, silent, None):
        plan = plan_late(node, event, TEAM_A)
        assert plan is not None
        assert writes_nothing(plan)
        assert plan.not_ours == NotOurs(plan.reason, is_excluded=True)


@settings(max_examples=100)
@given(node=NODES, facts=FACTS, known=st.booleans(), fault=FAULTS)
def test_by_schemes_nothing_is_planned_but_for_what_is_or_will_be_of_them(
    node: Node, facts: MachineFacts, known: bool, fault: MachineFault
):
    """The providerID that ownership evaluates is the one that the plan writes once the IP is valid."""
    registered = make_node(provider_id=node.spec.provider_id)
    has = node.spec.provider_id or plan_for(registered, facts, ClusterConfig()).changes.provider_id or ""
    if not has.startswith("talos://"):
        assert writes_nothing(plan_for(node, facts, TALOS_ONLY))
        late = plan_late(node, make_node_enriched(node, facts), TALOS_ONLY)
        assert late is not None
        assert late.blocker is None
    silent = msgspec.structs.replace(make_unreachable(node), fault=fault, last_known=facts if known else None)
    if not (has if known else node.spec.provider_id).startswith("talos://"):
        assert writes_nothing(plan_unreachable_node(node, silent, TALOS_ONLY))


TEAMS = st.sampled_from([{}, {"team": "a"}, {"team": "b"}])
NOT_TEAM_A = config_of("{nodeSelector: [{matchExpressions: [{key: team, operator: NotIn, values: [a]}]}]}")


@settings(max_examples=100)
@given(node=NODES, labels=TEAMS, facts=FACTS)
def test_of_two_instances_with_disjoint_selectors_one_plans_nothing(
    node: Node, labels: dict[str, str], facts: MachineFacts
):
    node = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels))
    one, other = plan_for(node, facts, TEAM_A), plan_for(node, facts, NOT_TEAM_A)
    assert writes_nothing(one) or writes_nothing(other)
    theirs = other if "team" not in labels or labels["team"] != "a" else one
    alone = plan_for(node, facts, ClusterConfig())
    changes = msgspec.structs.replace(theirs.changes, guarded_labels=alone.changes.guarded_labels)
    theirs = msgspec.structs.replace(theirs, changes=changes)
    assert theirs == alone, "and the other plans as if it were alone"
