"""The effects of rules on a machine: order, overrides, skipped and retained keys."""

from typing import Any

import msgspec
import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.cloud_config.model import CloudConfig, Rule, RuleEntry
from libs.common.contract.machine import Inventory, MachineFacts, PlatformMetadata, SystemInformation
from libs.common.contract.node import Taint
from services.labeler.core.plan.notices import build_skipped_notices
from services.labeler.core.rules.application import apply_rules
from services.labeler.core.rules.compilation import RulesError, compile_rules
from services.labeler.core.rules.effects import RuleEffects
from tests.builders import make_facts

PC = "Standard PC (i440FX + PIIX, 1996)"


def applied(transformations: str, facts: MachineFacts | None = None) -> RuleEffects:
    config = parse_cloud_config(f"transformations:\n{transformations}", "f")
    return apply_rules(compile_rules(config), facts or make_facts())


def a_machine(*, system: SystemInformation | None = None, inventory: Inventory | None = None, **said: Any):
    return msgspec.structs.replace(make_facts(**said), system=system, inventory=inventory)


def reasons(effects: RuleEffects) -> dict[str, str]:
    return {skipped.key: skipped.problem for _, skipped in effects.list_skipped()}


# ---- order and overrides


def test_every_rule_that_matches_applies_and_later_ones_override_earlier_keys():
    effects = applied("""
      - {labels: {a: one, b: one}, annotations: {n: one}}
      - {nodeSelector: [{matchExpressions: [{key: platform, operator: In, values: [aws]}]}], labels: {a: two}}
      - {labels: {b: three, c: three}}
    """)
    assert effects.labels == {"a": "one", "b": "three", "c": "three"}
    assert effects.annotations == {"n": "one"}
    assert [told.is_matched for told in effects.results] == [True, False, True]


def test_selectors_and_templates_see_what_talos_reported_and_not_what_a_rule_has_overridden():
    effects = applied(
        """
      - {platformMetadata: {Region: elsewhere}}
      - nodeSelector: [{matchExpressions: [{key: region, operator: In, values: [here]}]}]
        labels: {region: "{{ .Region }}"}
        platformMetadata: {Zone: "{{ .Region }}-1"}
    """,
        make_facts(region="here"),
    )
    assert effects.labels == {"region": "here"}
    assert (effects.platform.region, effects.platform.zone) == ("elsewhere", "here-1")


def test_a_later_taint_of_the_same_key_takes_the_place_of_the_earlier_one():
    effects = applied("""
      - {taints: {example.com/a: "x:NoSchedule", example.com/b: NoExecute}}
      - {taints: {example.com/a: "y:NoExecute"}}
    """)
    assert effects.taints == (
        Taint(key="example.com/a", value="y", effect="NoExecute"),
        Taint(key="example.com/b", effect="NoExecute"),
    )


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (["true"], True),
        (["false"], False),
        (["true", "false"], False),
        (["false", "true"], True),
        (["true", ""], True),
        ([""], False),
    ],
)
def test_the_last_rule_that_says_anything_of_public_ip_discovery_decides(said: list[str], wanted: bool):
    rules = [
        f"- {{features: {{publicIPDiscovery: {each}}}}}" if each else "- {name: silent}" for each in said
    ]
    assert applied("\n".join(rules)).public_ip_discovery is wanted


# ---- what the reference sees


def test_a_machine_whose_platform_names_no_host_is_selected_by_the_name_of_its_node():
    rule = """
      - nodeSelector: [{matchExpressions: [{key: hostname, operator: Regexp, values: ["^web-"]}]}]
        labels: {host: "{{ .Hostname }}"}
    """
    assert applied(rule, make_facts(platform="metal", node_name="web-1")).labels == {"host": "web-1"}
    assert not applied(rule, make_facts(platform="metal", node_name="web-1", hostname="db")).labels


def test_templates_see_the_provider_id_that_the_node_would_get():
    rule = "- {annotations: {id: '{{ .ProviderID }}'}}"
    metal = make_facts(platform="metal", node_ip="10.0.0.5")
    assert applied(rule, metal).annotations == {"id": "talos://metal/10.0.0.5"}
    assert applied(rule, make_facts(provider_id="hcloud://1")).annotations == {"id": "hcloud://1"}
    assert applied(rule, metal).platform.provider_id == "", "what is seen is not an override"


# ---- metadata


def test_overrides_are_trimmed_and_spot_is_true_only_for_the_word():
    effects = applied('- {platformMetadata: {zone: " a \\n", SPOT: "true", instanceID: "\\t"}}')
    assert effects.platform == PlatformMetadata(platform="metal", zone="a", spot=True)
    machine = make_facts(spot=True)
    for text in ("True", " true", "yes", ""):
        assert not applied(f'- {{platformMetadata: {{spot: "{text}"}}}}', machine).platform.spot


def test_an_override_that_renders_to_nothing_empties_the_field():
    effects = applied('- {platformMetadata: {Zone: "", Region: "{{ .Tags.no }}"}}', make_facts(zone="a"))
    assert effects.platform.zone == ""
    assert "Region" in reasons(effects), "Go prints <no value> for a missing entry, which is no label value"


def test_a_provider_id_cannot_be_emptied_nor_made_of_what_is_no_id():
    machine = make_facts(platform="hcloud", provider_id="hcloud://1")
    for text in ("", " ", "a b", "a\\x01", "x" * 1025):
        effects = applied(f'- {{platformMetadata: {{ProviderID: "{text}"}}}}', machine)
        assert effects.platform == machine.platform
        assert effects.retained == {("platformMetadata", "provider_id")}
        assert [(each.kind, each.key) for _, each in effects.list_skipped()] == [
            ("platformMetadata", "ProviderID")
        ]


# ---- skipped and retained


def test_a_bad_label_value_skips_that_key_alone_and_says_so():
    effects = applied(
        """
      - name: hardware
        labels: {example.com/model: "{{ .ProductName }}", example.com/maker: "{{ .Manufacturer }}"}
    """,
        a_machine(system=SystemInformation(product_name=PC, manufacturer="QEMU")),
    )
    assert effects.labels == {"example.com/maker": "QEMU"}
    assert effects.retained == {("label", "example.com/model")}
    ((rule, skipped),) = effects.list_skipped()
    assert (rule, skipped.kind, skipped.key) == ("hardware", "label", "example.com/model")
    assert skipped.rendered == PC
    assert "letters, digits" in skipped.problem


def test_a_rule_that_sanitises_sets_the_nearest_label_value():
    effects = applied(
        "- {sanitize: true, labels: {model: '{{ .ProductName }}', maker: '{{ .Manufacturer }}'}}",
        a_machine(system=SystemInformation(product_name=PC, manufacturer="???")),
    )
    assert effects.labels == {"model": "Standard-PC-i440FX-PIIX-1996"}
    assert "nothing is left" in reasons(effects)["maker"]


def test_a_template_that_fails_leaves_its_key_as_it_is_and_counts():
    effects = applied("""
      - {labels: {a: "{{ .NoSuchField }}", b: fine}, platformMetadata: {Region: "{{ index .Tags 1 }}"}}
    """)
    assert effects.labels == {"b": "fine"}
    assert effects.retained == {("label", "a"), ("platformMetadata", "region")}
    assert effects.failures == 2
    assert "its template failed: 1:3: at <.NoSuchField>: can't evaluate field" in reasons(effects)["a"]
    assert reasons(effects).keys() == {"a", "Region"}


def test_a_key_that_cannot_be_judged_is_not_set_by_an_earlier_rule_either():
    effects = applied("""
      - {labels: {a: one, b: one}, annotations: {a: one}, taints: {a: NoExecute}}
      - labels: {a: "{{ .No }}", b: "{{ .No }}"}
        annotations: {a: "{{ .No }}"}
        taints: {a: "{{ .No }}"}
      - {labels: {b: three}}
    """)
    assert effects.labels == {"b": "three"}
    assert (effects.annotations, effects.taints) == ({}, ())
    assert effects.retained == {("label", "a"), ("annotation", "a"), ("taint", "a")}


def test_keys_that_belong_to_others_are_refused_by_name():
    effects = applied("""
      - labels: {kubernetes.io/hostname: x, talos.dev/x: y, mytalos.dev/x: y}
        annotations: {node.cloudprovider.kubernetes.io/talos-ccm-owned: "{}"}
        taints: {node.kubernetes.io/not-ready: NoExecute}
    """)
    assert effects.labels == {"mytalos.dev/x": "y"}
    assert (effects.annotations, effects.taints) == ({}, ())
    assert not effects.retained, "what is never set needs no keeping"
    assert len(reasons(effects)) == 4


def test_a_rule_about_what_nobody_asked_talos_for_is_not_judged():
    rule = """
      - {labels: {a: one}}
      - nodeSelector: [{matchExpressions: [{key: machinetype, operator: In, values: [worker]}]}]
        labels: {a: two, b: two}
        platformMetadata: {Zone: z}
        features: {publicIPDiscovery: true}
    """
    effects = applied(rule)
    assert effects.labels == {}
    assert effects.retained == {
        ("label", "a"),
        ("label", "b"),
        ("platformMetadata", "zone"),
        ("feature", "publicIPDiscovery"),
    }
    assert not reasons(effects), "metadata will query it: no Event is needed"
    assert [told.is_evaluated for told in effects.results] == [True, False]
    assert effects.results[1].reason == "metadata has not queried MachineType yet"
    asked = applied(rule, a_machine(inventory=Inventory(machine_type="worker")))
    assert asked.labels == {"a": "two", "b": "two"}
    assert asked.public_ip_discovery
    assert not asked.retained


def test_texts_that_are_told_fit_into_an_event_and_only_some_keys_are_told_one_by_one():
    text = "\x1b[31m" + "ä\n" * 40_000
    keys = ", ".join(f"k{n}: '{{{{ .InstanceID }}}}'" for n in range(200))
    effects = applied(f"- {{labels: {{{keys}}}}}", make_facts(instance_id=text))
    assert len(effects.retained) == 200
    *told, more = build_skipped_notices(effects)
    assert len(told) == 6
    for notice in told:
        assert notice.message.isprintable()
        assert len(notice.message) <= 1024
        assert " is left out: " in notice.message
    assert more.message == "194 more keys of rules are skipped"


# ---- annotations


def test_an_annotation_is_any_text_but_for_orders_to_a_terminal():
    facts = make_facts(instance_id="a\tb\r\nc\x1b[2J\x00\x85ä😀\ud800")
    effects = applied("- {annotations: {a: '{{ .InstanceID }}'}}", facts)
    # Three bytes of a lone surrogate are three invalid ones, as in Go.
    assert effects.annotations == {"a": "a\tb\r\nc\ufffd[2J\ufffd\ufffdä😀\ufffd\ufffd\ufffd"}


def test_an_annotation_longer_than_what_is_known_of_a_node_is_skipped():
    assert applied(f"- {{annotations: {{a: {'x' * 1024}}}}}").annotations == {"a": "x" * 1024}
    effects = applied(f"- {{annotations: {{a: {'x' * 1025}}}}}")
    assert not effects.annotations
    assert effects.retained == {("annotation", "a")}
    assert reasons(effects)["a"] == "an annotation of a rule has at most 1024 characters, this has 1025"


def test_annotations_of_all_rules_together_are_bounded():
    keys = ", ".join(f"k{n:02}: {'x' * 1000}" for n in range(70))
    effects = applied(f"- {{annotations: {{{keys}}}}}\n- {{annotations: {{k00: short, k69: short}}}}")
    sizes = [len(key) + len(value) for key, value in effects.annotations.items()]
    assert sum(sizes) <= 65_536
    assert len(effects.annotations) == 66, "65 of 1003 bytes, of which one was shortened, and one short one"
    assert effects.annotations["k69"] == "short"
    assert "more than 65536 bytes" in reasons(effects)["k68"]


# ---- told


def test_each_rule_tells_why_it_matched_and_what_became_of_each_key():
    effects = applied("""
      - name: no
        nodeSelector: [{matchExpressions: [{key: zone, operator: Exists}]}]
        labels: {a: b}
      - labels: {x: "{{ .Platform }}", y: "{{ .No }}"}
        platformMetadata: {region: " r "}
    """)
    no, yes = effects.results
    assert (no.rule, no.index, no.is_matched, no.reason, no.entries) == (
        "no",
        0,
        False,
        "the machine has no zone",
        (),
    )
    assert (yes.rule, yes.index, yes.is_matched) == ("transformations[1]", 1, True)
    x, y, region = yes.entries
    assert (x.kind, x.key, x.rendered, x.value, x.problem) == ("label", "x", "metal", "metal", "")
    assert (y.rendered, y.value) == ("", "")
    assert "can't evaluate field No" in y.problem
    assert (region.kind, region.key, region.rendered, region.value) == (
        "platformMetadata", "Region", " r ", "r",
    )  # fmt: skip


# ---- compiling


def test_all_templates_that_are_none_are_told_with_their_lines():
    config = parse_cloud_config(
        """transformations:
- name: a
  labels:
    x: "{{ .Region "
- annotations:
    y: fine
    z: "{{ nosuch .Region }}"
""",
        "f",
    )
    with pytest.raises(RulesError) as caught:
        compile_rules(config)
    broken, unknown = (f"line {each.line}: {each.path} {each.problem}" for each in caught.value.findings)
    at = 'line 4: transformations[0].labels["x"]'
    assert broken == f"{at} is not a valid template: 1:11: unclosed action"
    assert unknown.startswith('line 7: transformations[1].annotations["z"] is not a valid template: 1:')
    assert unknown.endswith('function "nosuch" not defined')


def test_a_field_that_no_machine_has_is_a_warning_because_it_may_never_be_reached():
    rules = compile_rules(
        parse_cloud_config("transformations: [{labels: {x: '{{ if .Spot }}{{ .Regoin }}{{ end }}'}}]", "f")
    )
    (warning,) = rules.warnings
    assert warning.format("f") == (
        'f, line 1: transformations[0].labels["x"] reads .Regoin, which no machine has: the template '
        "fails when it reads this field; did you mean Region?"
    )
    assert apply_rules(rules, make_facts()).labels == {"x": ""}


def test_a_file_of_more_rules_than_anybody_maintains_is_refused():
    rule = Rule(index=0, labels=(RuleEntry("a", "b", 1),))
    with pytest.raises(RulesError, match="more than 1000 rules"):
        compile_rules(CloudConfig(rules=(rule,) * 1001))
    many = Rule(index=0, line=7, labels=tuple(RuleEntry(f"k{n}", "b", 1) for n in range(10_001)))
    with pytest.raises(RulesError, match="line 7: the file has more than 10000 keys"):
        compile_rules(CloudConfig(rules=(many,)))
