"""Plans with rules: their keys change and are removed with them; other keys stay unchanged."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from libs.common.contract.machine import AddressStatus, SystemInformation
from libs.common.contract.node import FIELD_OWNERSHIP_ANNOTATION, Node, Taint
from libs.common.contract.node_patch import build_node_patch
from services.labeler.core.plan.keys import REGION, ZONE
from services.labeler.core.plan.plan import ClusterConfig, Plan
from tests.builders import NOW, UNINITIALIZED, make_facts, make_node
from tests.node_plans import (
    apply_plan,
    change_metadata,
    compile_one_rule,
    decode_record_annotation,
    exclude_record_label,
    plan_and_apply,
    plan_for,
    set_ownership_record,
)

METAL = make_facts()
HCLOUD = make_facts(platform="hcloud", provider_id="hcloud://7", region="eu-central", zone="fsn1-dc14")
NONE = ClusterConfig()
TEAM = compile_one_rule(labels="{example.com/team: web}")
OTHER_TEAM = compile_one_rule(labels="{example.com/team: db}")
NOTE = compile_one_rule(annotations="{example.com/note: 'a note & <more>'}")
TAINT = compile_one_rule(taints="{example.com/agent: 'waiting:NoExecute'}")
WAITING = Taint(key="example.com/agent", value="waiting", effect="NoExecute")
PLATFORM = "node.cloudprovider.kubernetes.io/platform"


def told(plan: Plan) -> list[tuple[str, str]]:
    return [(notice.reason, notice.message) for notice in plan.notices]


def of_the_reference(**more: Any) -> Node:
    """An initialized Node without an ownership record."""
    labels = {"kubernetes.io/hostname": "web-1", PLATFORM: "metal"} | more.pop("labels", {})
    node = make_node(labels=labels, taints=(), provider_id="talos://metal/10.0.0.5", **more)
    return obeyed_addresses(node)


def obeyed_addresses(node: Node) -> Node:
    return apply_plan(
        node, Plan(outcome="updated", reason="", addresses=plan_for(node, METAL, NONE).addresses)
    )


def is_settled(node: Node, config: ClusterConfig) -> bool:
    return plan_for(node, METAL, config).summary == ()


# ---- labels and annotations


@pytest.mark.parametrize(
    ("config", "writes"),
    [
        (TEAM, "label example.com/team=web"),
        (NOTE, "annotation example.com/note=a note & <more>"),
        (TAINT, "taint example.com/agent=waiting:NoExecute set"),
        (compile_one_rule(labels='{node-role.kubernetes.io/web: ""}'), "label node-role.kubernetes.io/web="),
    ],
)
def test_what_a_rule_sets_comes_with_its_initialisation_and_goes_with_the_rule(
    config: ClusterConfig, writes: str
):
    plan = plan_for(make_node(), METAL, config)
    assert plan.outcome == "initialized"
    assert writes in plan.summary
    node = apply_plan(make_node(), plan)
    assert is_settled(node, config)
    without = plan_and_apply(node, METAL, NONE)
    assert without == plan_and_apply(make_node(), METAL, NONE)
    assert is_settled(without, NONE)


def test_what_is_said_of_a_write_is_one_line_whatever_the_machine_says():
    facts = make_facts(hostname="web\n\x1b[2J\u202e")
    plan = plan_for(make_node(), facts, compile_one_rule(annotations="{example.com/note: '{{ .Hostname }}'}"))
    assert (plan.changes.annotations["example.com/note"] or "").startswith("web\n")
    assert all(line.isprintable() for line in plan.summary)


def test_a_label_that_somebody_changed_is_theirs_for_ever_and_that_is_told_once():
    node = change_metadata(plan_and_apply(make_node(), METAL, TEAM), labels={"example.com/team": "mine"})
    plan = plan_for(node, METAL, TEAM)
    assert exclude_record_label(plan.changes.labels) == {}
    [(reason, message)] = told(plan)
    assert reason == "KeptForOthers"
    assert message == (
        "another writer has set label example.com/team to 'mine' instead of 'web' and owns it now; "
        "to get it back: kubectl label node web-1 example.com/team-"
    )
    node = apply_plan(node, plan)
    assert told(plan_for(node, METAL, TEAM)) == []
    for config in (TEAM, OTHER_TEAM, NONE, TEAM, OTHER_TEAM):
        node = plan_and_apply(node, METAL, config)
        assert node.labels["example.com/team"] == "mine"
    removed = change_metadata(node, labels={"example.com/team": None})
    assert plan_and_apply(removed, METAL, TEAM).labels["example.com/team"] == "web"


def test_a_rules_label_goes_before_a_built_in_one_which_comes_back_without_it():
    config = compile_one_rule(labels=f"{{{ZONE[0]}: rack-7}}")
    node = plan_and_apply(make_node(), HCLOUD, config)
    assert node.labels[ZONE[0]] == "rack-7"
    assert node.labels[ZONE[1]] == "fsn1-dc14"
    assert plan_and_apply(node, HCLOUD, NONE).labels[ZONE[0]] == "fsn1-dc14"
    assert ZONE[0] not in plan_and_apply(plan_and_apply(make_node(), METAL, config), METAL, NONE).labels


# ---- built-in labels


def test_a_joining_node_gets_its_zone_whatever_its_kubelet_registered():
    node = plan_and_apply(make_node(labels={ZONE[0]: "kubelet's"}), HCLOUD, NONE)
    assert node.labels[ZONE[0]] == "fsn1-dc14"


def test_an_overridden_zone_is_reconciled_and_goes_with_its_rule():
    node = plan_and_apply(make_node(), METAL, compile_one_rule(platformMetadata="{Zone: a, Region: r}"))
    assert [node.labels[key] for key in (*ZONE, *REGION)] == ["a", "a", "r", "r"]
    node = plan_and_apply(node, METAL, compile_one_rule(platformMetadata="{zone: b}"))
    assert {key: node.labels.get(key) for key in (*ZONE, *REGION)} == dict.fromkeys(
        ZONE, "b"
    ) | dict.fromkeys(REGION)
    assert plan_and_apply(node, METAL, NONE).labels == plan_and_apply(make_node(), METAL, NONE).labels


# ---- taints


def test_a_rules_taint_is_there_in_the_patch_that_takes_the_uninitialized_one():
    plan = plan_for(make_node(), METAL, TAINT)
    patch = build_node_patch(make_node(), plan.changes)
    paths = [operation["path"] for operation in patch if operation["op"] != "test"]
    assert "/spec/taints/-" in paths
    assert "/spec/taints/0" in paths
    node = apply_plan(make_node(), plan)
    assert node.spec.taints == (WAITING,)


def test_a_node_that_joins_anew_gets_its_taints_anew():
    node = plan_and_apply(change_metadata(plan_and_apply(make_node(), METAL, TAINT), taints=()), METAL, TAINT)
    assert plan_and_apply(change_metadata(node, taints=(UNINITIALIZED,)), METAL, TAINT).spec.taints == (
        WAITING,
    )


def test_another_effect_is_another_taint_and_the_old_one_goes():
    node = plan_and_apply(make_node(), METAL, TAINT)
    node = plan_and_apply(node, METAL, compile_one_rule(taints="{example.com/agent: NoSchedule}"))
    assert node.spec.taints == (Taint(key="example.com/agent", effect="NoSchedule"),)


def test_a_changed_value_is_changed_in_place():
    mine = Taint(key="mine", effect="NoSchedule")
    node = change_metadata(plan_and_apply(make_node(), METAL, TAINT), taints=(WAITING, mine))
    node = plan_and_apply(node, METAL, compile_one_rule(taints="{example.com/agent: 'other:NoExecute'}"))
    assert node.spec.taints == (Taint(key="example.com/agent", value="other", effect="NoExecute"), mine)


def test_a_taint_of_talos_gets_no_second_effect():
    of_talos = Taint(key="example.com/agent", effect="NoSchedule")
    node = make_node(
        taints=(of_talos, UNINITIALIZED), annotations={"talos.dev/owned-taints": '["example.com/agent"]'}
    )
    plan = plan_for(node, METAL, TAINT)
    assert apply_plan(node, plan).spec.taints == (of_talos,)
    assert "set by the machine config and left unchanged: example.com/agent:NoExecute" in plan.reason


@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_keys_of_the_machine_config_stay_when_their_rule_changes_and_goes(kind: str):
    owned: dict[str, str | None] = {f"talos.dev/owned-{kind}": '["example.com/k"]'}
    config = compile_one_rule(**{kind: "{example.com/k: v}"})
    node = change_metadata(plan_and_apply(make_node(), METAL, config), annotations=owned)
    plan = plan_for(node, METAL, compile_one_rule(**{kind: "{example.com/k: w}"}))
    assert "set by the machine config and left unchanged: example.com/k" in plan.reason
    for other in (compile_one_rule(**{kind: "{example.com/k: w}"}), NONE):
        node = plan_and_apply(node, METAL, other)
        assert getattr(node, kind)["example.com/k"] == "v"


# ---- records that are not there, or newer


def test_an_upgrade_writes_to_no_node_that_is_right_already():
    assert plan_for(of_the_reference(), METAL, NONE).summary == ()


def test_what_the_reference_left_is_adopted_and_goes_with_its_rule():
    node = of_the_reference(labels={"example.com/team": "web"}, annotations={"example.com/note": "n"})
    config = compile_one_rule(labels="{example.com/team: web}", annotations="{example.com/note: n}")
    plan = plan_for(node, METAL, config)
    assert plan.summary == (f"annotation {FIELD_OWNERSHIP_ANNOTATION}: ownership record",)
    node = apply_plan(node, plan)
    assert is_settled(node, config)
    node = plan_and_apply(node, METAL, NONE)
    assert "example.com/team" not in node.labels
    assert "example.com/note" not in node.annotations


def test_a_zone_that_a_person_gave_to_an_unrecorded_node_is_theirs_but_for_the_machines_own_word():
    node = of_the_reference(labels={ZONE[0]: "mine"})
    after = plan_and_apply(node, METAL, compile_one_rule(platformMetadata="{Zone: rack-7}"))
    assert (after.labels[ZONE[0]], after.labels[ZONE[1]]) == ("mine", "rack-7")
    assert plan_and_apply(node, make_facts(zone="fsn1"), NONE).labels[ZONE[0]] == "fsn1"


def test_the_taints_of_a_running_node_are_not_changed_by_the_migration():
    node = plan_and_apply(of_the_reference(), METAL, TAINT)
    assert node.spec.taints == ()
    assert is_settled(node, TAINT)
    tainted = change_metadata(of_the_reference(), taints=(WAITING,))
    tainted = plan_and_apply(tainted, METAL, TAINT)
    assert tainted.spec.taints == (WAITING,)
    assert plan_and_apply(tainted, METAL, NONE).spec.taints == ()


def test_a_record_of_a_newer_version_stays_and_nothing_is_taken_away():
    newer = '{"v":2,"what":"ever"}'
    node = set_ownership_record(plan_and_apply(make_node(), METAL, TEAM), newer)
    plan = plan_for(node, METAL, compile_one_rule(labels="{example.com/team: db, example.com/new: v}"))
    assert plan.summary == ("label example.com/new=v",)
    after = apply_plan(node, plan)
    assert after.annotations[FIELD_OWNERSHIP_ANNOTATION] == newer
    assert {notice.reason for notice in plan.notices} == {"OwnedRecordUnreadable", "KeptForOthers"}


# ---- providerID and addresses


def test_a_rule_gives_the_provider_id_of_a_cloud_that_gives_none():
    config = compile_one_rule(platformMetadata="{ProviderID: 'metal://{{ .UUID }}'}")
    for platform in ("metal", "nocloud"):
        facts = make_facts(platform=platform, uuid="4c4c4544")
        plan = plan_for(make_node(), facts, config)
        assert (plan.outcome, plan.changes.provider_id) == ("initialized", "metal://4c4c4544")
        node = apply_plan(make_node(), plan)
        assert decode_record_annotation(node)["provider_id"] == "metal://4c4c4544"
        assert plan_for(node, facts, config).outcome == "unchanged"
        assert plan_for(node, facts, NONE).outcome == "unchanged"


def test_a_provider_id_made_of_what_the_cloud_has_not_told_yet_is_waited_for():
    config = compile_one_rule(platformMetadata="{ProviderID: 'mine://{{ .InstanceID }}'}")
    plan = plan_for(make_node(), make_facts(platform="nocloud"), config)
    assert (plan.outcome, plan.summary) == ("blocked", ())
    known = make_facts(platform="nocloud", instance_id="i-1")
    assert plan_for(make_node(), known, config).changes.provider_id == "mine://i-1"
    settled = make_facts(platform="nocloud", queried_at=NOW + timedelta(hours=1))
    assert plan_for(make_node(), settled, config).outcome in {"initialized", "blocked"}


def test_other_overrides_do_not_make_metadata_complete():
    config = compile_one_rule(platformMetadata="{Region: r}")
    assert plan_for(make_node(), make_facts(platform="nocloud"), config).outcome == "blocked"
    assert plan_for(make_node(), make_facts(platform="hcloud"), config).outcome == "blocked"


def test_a_provider_id_whose_rule_failed_is_not_replaced_by_a_guess():
    config = compile_one_rule(platformMetadata="{ProviderID: 'metal://{{ slice .UUID 0 8 }}'}")
    plan = plan_for(make_node(), METAL, config)
    assert plan.blocker is not None
    assert plan.blocker.reason == "ProviderIDRuleFailed"
    assert "rule 'one'" in plan.blocker.message
    there = make_node(provider_id="talos://metal/10.0.0.5")
    assert plan_for(there, METAL, config).outcome == "initialized"


PLACEHOLDER = "03000200-0400-0500-0006-000700080009"
UUID = "4c4c4544-0042-3510-8056-b7c04f595831"


@pytest.mark.parametrize(
    ("template", "facts", "why"),
    [
        ("vsphere://{{ .UUID }}", {}, "after 'vsphere://'"),
        ("{{ .Region }}://{{ .InstanceID }}", {"instance_id": "100"}, "its scheme"),
        ("vsphere://vm-{{ .UUID }}", {}, "after 'vsphere://'"),
        ("proxmox://{{ .Region }}/{{ .InstanceID }}", {"instance_id": "100"}, "after 'proxmox://'"),
        ("proxmox://{{ .Region }}/{{ .InstanceID }}", {"region": "r"}, "after 'proxmox://r/'"),
        ("aws:///{{ .Zone }}/{{ .InstanceID }}", {"instance_id": "i-1"}, "after 'aws:///'"),
        ('{{ printf "aws:///%s/%s" .Zone .InstanceID }}', {"instance_id": "i-1"}, "after 'aws:///'"),
        ('{{ printf "aws:///%s/%s" .Zone .InstanceID }}', {"zone": "z"}, "after 'aws:///z/'"),
        ("metal://rack/", {}, "after 'metal://rack/'"),
        ("metal://{{ with .UUID }}{{ . }}{{ end }}", {}, "after 'metal://'"),
        ("ocid1.instance.{{ .InstanceID }}", {}, "at its start"),
        ("vsphere://{{ .UUID }}", {"uuid": PLACEHOLDER}, f"its UUID {PLACEHOLDER} counts as empty"),
        ('vsphere://{{ .UUID | replace "-" "" }}', {"uuid": PLACEHOLDER}, "counts as empty"),
        (
            "vsphere://{{ .UUID | upper }}",
            {"uuid": "ffffffff-ffff-ffff-ffff-ffffffffffff"},
            "counts as empty",
        ),
    ],
)
def test_a_provider_id_with_an_empty_part_keeps_the_node_uninitialized(
    template: str, facts: dict[str, Any], why: str
):
    config = compile_one_rule(platformMetadata=f"{{ProviderID: '{template}'}}")
    machine = make_facts(platform="metal", **facts)
    machine = machine if machine.system else msgspec.structs.replace(machine, system=SystemInformation())
    plan = plan_for(make_node(), machine, config)
    assert (plan.outcome, plan.summary) == ("blocked", ())
    assert plan.blocker is not None
    assert plan.blocker.reason == "ProviderIDRuleFailed"
    assert why in plan.blocker.message


@pytest.mark.parametrize(
    ("template", "provider_id"),
    [
        ("aws:///{{ .Zone }}/{{ .InstanceID }}", "aws:///z/i-1"),
        ("openstack:///{{ .InstanceID }}", "openstack:///i-1"),
        ("openstack://{{ with .Region }}{{ . }}{{ end }}/{{ .InstanceID }}", "openstack:///i-1"),
        ('{{ printf "openstack://%s/%s" .Region .InstanceID }}', "openstack:///i-1"),
        ("metal://{{ .InstanceID }}{{ .Region }}", "metal://i-1"),
        ("{{ if .Region }}a://{{ .Region }}{{ else }}b://{{ .InstanceID }}{{ end }}", "b://i-1"),
        ('{{ $id := .InstanceID }}x://a{{ "/" }}{{ $id }}', "x://a/i-1"),
        (f'vsphere://{{{{ .UUID | default "" }}}}{UUID}', f"vsphere://{UUID}{UUID}"),
        ("vsphere://{{ .UUID }}", f"vsphere://{UUID}"),
        ("{{ .Zone }}.{{ .InstanceID }}", "z.i-1"),
    ],
)
def test_a_literally_empty_authority_and_optional_parts_are_valid(template: str, provider_id: str):
    config = compile_one_rule(platformMetadata=f"{{ProviderID: '{template}'}}")
    facts = make_facts(platform="metal", zone="z", instance_id="i-1", uuid=UUID)
    assert plan_for(make_node(), facts, config).changes.provider_id == provider_id


def test_a_rule_may_name_another_fact_where_the_uuid_is_a_placeholder():
    template = "metal://{{ .UUID | default .SerialNumber }}"
    config = compile_one_rule(
        platformMetadata=f"{{ProviderID: '{template}'}}", labels="{uuid: '{{ .UUID }}'}"
    )
    facts = msgspec.structs.replace(METAL, system=SystemInformation(uuid=PLACEHOLDER, serial_number="XYZ-7"))
    changes = plan_for(make_node(), facts, config).changes
    assert (changes.provider_id, changes.labels["uuid"]) == ("metal://XYZ-7", PLACEHOLDER)


def test_a_foreign_looking_provider_id_that_a_rule_gave_is_ours_even_without_the_rule():
    config = compile_one_rule(platformMetadata="{ProviderID: 'proxmox://c/{{ .UUID }}'}")
    facts = make_facts(platform="nocloud", uuid="u-1", hostname="web-1")
    node = plan_and_apply(make_node(), facts, config)
    assert node.spec.provider_id == "proxmox://c/u-1"
    assert exclude_record_label(plan_for(node, facts, TEAM).changes.labels) == {"example.com/team": "web"}


PUBLIC = AddressStatus(address="203.0.113.7/24", link="eth1")
OWN = AddressStatus(address="10.0.0.5/24", link="eth0")


def test_a_rule_discovers_public_ips_on_a_platform_that_does_not():
    facts = make_facts(platform="hcloud", provider_id="hcloud://7", addresses=(OWN, PUBLIC))
    config = compile_one_rule(features="{publicIPDiscovery: true}")
    for rules, external in ((config, ["203.0.113.7"]), (NONE, [])):
        node = plan_and_apply(make_node(), facts, rules)
        assert [each.address for each in node.status.addresses if each.type == "ExternalIP"] == external


def test_a_node_that_joins_with_the_scheme_that_its_rule_gives_is_ours():
    config = compile_one_rule(platformMetadata="{ProviderID: 'proxmox://c/{{ .UUID }}'}")
    facts = make_facts(platform="nocloud", uuid="u-1", hostname="web-1")
    node = make_node(provider_id="proxmox://c/u-1")
    assert plan_for(node, facts, NONE).outcome == "not-ours"
    assert plan_for(node, facts, config).outcome == "initialized"


def test_a_rule_about_provider_ids_that_comes_later_disowns_no_node():
    node = plan_and_apply(make_node(), HCLOUD, NONE)
    config = compile_one_rule(platformMetadata="{ProviderID: 'mine://7'}", labels="{example.com/team: web}")
    plan = plan_for(node, HCLOUD, config)
    assert (plan.outcome, plan.changes.labels["example.com/team"]) == ("updated", "web")
    assert "'hcloud://7', but a rule says 'mine://7'" in told(plan)[0][1]
    assert plan_for(make_node(provider_id="aws:///z/i-1"), HCLOUD, config).outcome == "not-ours"


def test_a_taint_that_the_kubelet_registered_too_is_not_put_back_on_a_node_in_use():
    node = plan_and_apply(make_node(taints=(WAITING, UNINITIALIZED)), METAL, TAINT)
    assert node.spec.taints == (WAITING,)
    assert is_settled(node, TAINT)
    assert plan_and_apply(node, METAL, NONE).spec.taints == (WAITING,)  # it is not ours to remove
    assert plan_and_apply(change_metadata(node, taints=()), METAL, TAINT).spec.taints == ()
