"""What a config file says; all else that the reference reads: tests/contract/test_config_decoding.py."""

import time

import pytest

from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.cloud_config.model import NodeSelectorRequirement, NodeSelectorTerm, RuleEntry
from tests.cloud_config_mutations import REFERENCE_SAMPLE


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


def test_a_rule_without_a_name_is_called_by_its_place():
    config = parse_cloud_config("transformations: [~, {}, {name: ''}, {name: x}]", "f")
    assert [rule.title for rule in config.rules] == ["transformations[1]", "transformations[2]", "x"]
    assert [warning.path for warning in config.warnings] == ["transformations[0]"]


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
