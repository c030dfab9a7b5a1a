"""What a config file says."""

import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.cloud_config.model import (
    CloudConfig,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    RuleEntry,
)
from tests.cloud_config_mutations import REFERENCE_SAMPLE
from tests.unit.libs.common.cloud_config.test_mistakes import rule_of

# ---- what is read


def test_the_sample_of_the_reference_s_documentation_is_read_as_it_is_meant():
    config = parse_cloud_config(REFERENCE_SAMPLE, "f")
    assert (config.cluster_name, config.prefer_ipv6) == (None, False)
    assert config.warnings == ()
    nocloud, web = config.rules
    assert (nocloud.title, nocloud.index, nocloud.line, web.line) == ("nocloud-nodes", 0, 5, 14)
    assert nocloud.selector == (
        NodeSelectorTerm(
            requirements=(
                NodeSelectorRequirement(key="platform", operator="In", values=("nocloud",), line=8),
            ),
            line=7,
        ),
    )
    assert nocloud.labels == (RuleEntry("pvc-storage-class/name", "my-storage-class", 13),)
    assert [len(term.requirements) for term in web.selector] == [2, 1]
    assert web.annotations[0] == RuleEntry("custom-annotation/instance-id", "id-{{ .InstanceID }}", 31)
    assert web.labels[0] == RuleEntry("node-role.kubernetes.io/web", "", 34)
    assert web.taints == (RuleEntry("node.cloudprovider.kubernetes.io/storage-type", "ceph:NoSchedule", 37),)
    assert [entry.key for entry in web.platform_metadata] == [
        "region",
        "zone",
        "instance_type",
        "provider_id",
    ]
    assert web.public_ip_discovery is True
    assert web.sanitize is False
    assert [kind for kind, _ in web.entries()] == [
        *["annotations"] * 2,
        *["labels"] * 2,
        "taints",
        *["platformMetadata"] * 4,
    ]


def test_what_the_reference_reads_only_in_one_letter_case_is_said_to_differ():
    config = parse_cloud_config(REFERENCE_SAMPLE, "f")
    assert [finding.format("f") for finding in config.differences] == [
        "f, line 3: global.preferIPv6 is written PreferIPv6, a spelling that the reference ignores"
    ]


def test_sections_that_the_reference_does_not_know_are_said_to_differ_unless_they_are_empty():
    text = "global: {externalIPs: {discovery: true}}\nipam: {pools: []}\nownership: {controllers: []}\n"
    assert [finding.format("f") for finding in parse_cloud_config(text, "f").differences] == [
        f"f, line {line}: {section} is unknown to the reference, which ignores it"
        for line, section in ((1, "global.externalIPs"), (2, "ipam"), (3, "ownership"))
    ]
    assert parse_cloud_config("ipam: {}\nownership: {}\n", "f").differences == ()


@pytest.mark.parametrize("text", ["", "\ufeff", "# nothing\n", "~", "---\n", "--- {}\n...\n", "{}"])
def test_an_empty_file_says_nothing(text: str):
    assert parse_cloud_config(text, "f") == CloudConfig()
    assert parse_cloud_config(text.encode(), "f") == CloudConfig()


@pytest.mark.parametrize("ending", ["\r\n", "\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_marks_of_windows_are_read(ending: str, mark: str):
    text = mark + REFERENCE_SAMPLE.replace("\n", ending)
    assert parse_cloud_config(text.encode(), "f").rules == parse_cloud_config(REFERENCE_SAMPLE, "f").rules


def test_any_scalar_is_a_text_as_it_was_written():
    rule = rule_of(
        "annotations: {a: yes, b: 1.10, c: 0x10, d: 2024-01-01, e: ~, f: , g: '', h: =, i: 1_0, 7: n}"
    )
    assert [(entry.key, entry.template) for entry in rule.annotations] == [
        ("a", "yes"),
        ("b", "1.10"),
        ("c", "0x10"),
        ("d", "2024-01-01"),
        ("e", ""),
        ("f", ""),
        ("g", ""),
        ("h", "="),
        ("i", "1_0"),
        ("7", "n"),
    ]
    assert rule_of(
        "nodeSelector: [{matchExpressions: [{key: zone, operator: In, values: [1, true, ~, '']}]}]"
    ).selector[0].requirements[0].values == ("1", "true", "")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("true", True), ("TRUE", True), ("yes", True), ("'y'", True), ("On", True)),
        *(("false", False), ("no", False), ("'off'", False), ("N", False), ("~", None)),
    ],
)
def test_booleans_are_those_of_the_reference_s_decoder(text: str, value: bool | None):
    assert rule_of("features: {publicIPDiscovery: %s}" % text).public_ip_discovery is value  # noqa: UP031
    assert parse_cloud_config("global: {preferIPv6: " + text + "}", "f").prefer_ipv6 is value


def test_a_rule_without_a_name_is_called_by_its_place():
    config = parse_cloud_config("transformations: [~, {}, {name: ''}, {name: x}]", "f")
    assert [rule.title for rule in config.rules] == ["transformations[1]", "transformations[2]", "x"]
    assert [warning.path for warning in config.warnings] == ["transformations[0]"]


def test_empty_selectors_and_empty_terms_are_reported_apart():
    assert rule_of("nodeSelector: []").selector == ()
    assert rule_of("nodeSelector: ~").selector == ()
    (bare,) = rule_of("nodeSelector: [{}]").selector
    (empty,) = rule_of("nodeSelector: [{matchExpressions: []}]").selector
    (named,) = rule_of("nodeSelector: [{name: nothing}]").selector
    assert [term.requirements for term in (bare, empty, named)] == [(), (), ()]


def test_anchors_and_merge_keys_are_followed():
    text = (
        "transformations:\n"
        "- labels: &common {a: '1', b: '1'}\n"
        "  annotations: &more {c: '3', a: '9'}\n"
        "- labels: {<<: *common, b: '2'}\n"
        "- labels: {b: '2', <<: [*more, *common]}\n"
        "- &rule {name: x, sanitize: true}\n"
        "- {<<: *rule, name: y}\n"
    )
    rules = parse_cloud_config(text, "f").rules
    assert {entry.key: entry.template for entry in rules[1].labels} == {"a": "1", "b": "2"}
    assert {entry.key: entry.template for entry in rules[2].labels} == {"a": "9", "b": "2", "c": "3"}
    assert (rules[4].name, rules[4].sanitize) == ("y", True)


# ---- round trip

keys = st.from_regex(r"([a-z]{1,5}\.[a-z]{1,3}/)?[A-Za-z][A-Za-z0-9_.-]{0,10}[a-z0-9]", fullmatch=True)
templates = st.dictionaries(keys, st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])))
expressions = st.one_of(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(["Platform", "zone", "tags.Role"]),
            "operator": st.sampled_from(["In", "NotIn"]),
            "values": st.lists(st.text("ab1.~", max_size=4), min_size=1, max_size=3),
        }
    ),
    st.fixed_dictionaries(
        {"key": st.just("region"), "operator": st.sampled_from(["Exists", "DoesNotExist"])}
    ),
)
documents = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "name": st.text("ab :#", max_size=8),
            "nodeSelector": st.lists(
                st.fixed_dictionaries({"matchExpressions": st.lists(expressions, max_size=2)}), max_size=2
            ),
            "annotations": templates,
            "sanitize": st.booleans(),
            "features": st.fixed_dictionaries({"publicIPDiscovery": st.booleans()}),
        },
    ),
    max_size=3,
)


@given(documents)
def test_what_was_written_is_what_is_read(rules: list[dict[str, Any]]):
    config = parse_cloud_config(yaml.safe_dump({"transformations": rules}, sort_keys=False), "f")
    assert len(config.rules) == len(rules)
    for rule, written in zip(config.rules, rules, strict=True):
        assert rule.name == written.get("name", "")
        assert {entry.key: entry.template for entry in rule.annotations} == written.get("annotations", {})
        assert rule.sanitize == written.get("sanitize", False)
        assert rule.public_ip_discovery == written.get("features", {}).get("publicIPDiscovery")
        assert [
            [(each.key.lower(), each.operator, list(each.values)) for each in term.requirements]
            for term in rule.selector
        ] == [
            [
                (each["key"].lower(), each["operator"], each.get("values", []))
                for each in term["matchExpressions"]
            ]
            for term in written.get("nodeSelector", [])
        ]


def test_a_file_that_was_cut_off_is_too_long_however_few_characters_it_has():
    rest = b"transformations: []\n#  " + "é".encode() * (1 << 19)
    with pytest.raises(CloudConfigError, match="longer than 1048576 bytes"):
        parse_cloud_config(rest[: (1 << 20) + 1], "ccm-config.yaml")  # as much as is read of one


@pytest.mark.parametrize("pattern", [r"(\pL{100})", r"(\pL{400})"], ids=["large", "too large"])
def test_a_file_of_large_patterns_is_refused_before_they_take_minutes(pattern: str):
    requirements = "".join(
        f"    - {{key: zone, operator: Regexp, values: ['{pattern}{n}']}}\n" for n in range(5000)
    )
    began = time.process_time()
    with pytest.raises(CloudConfigError, match="the earlier patterns of the file are too many and too large"):
        parse_cloud_config(
            "transformations:\n- nodeSelector:\n  - matchExpressions:\n" + requirements, "ccm-config.yaml"
        )
    assert time.process_time() - began < 20  # all of them would take more than a minute
