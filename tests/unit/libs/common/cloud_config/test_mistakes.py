"""Every mistake of a config file with file, line and path; and what is passed over with a warning."""

import pytest

from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.cloud_config.model import Rule


def rule_of(text: str) -> Rule:
    (rule,) = parse_cloud_config(f"transformations: [{{{text}}}]", "f").rules
    return rule


def mistakes(text: str | bytes) -> list[str]:
    with pytest.raises(CloudConfigError) as caught:
        parse_cloud_config(text, "f")
    return caught.value.mistakes


def rule_mistakes(text: str) -> list[str]:
    return [each.removeprefix("f, line 1: ") for each in mistakes(f"transformations: [{{{text}}}]")]


def rule_warnings(text: str) -> list[str]:
    config = parse_cloud_config(f"transformations: [{{{text}}}]", "f")
    return [f"{warning.path} {warning.problem}" for warning in config.warnings]


def test_every_mistake_comes_at_once_with_file_line_and_path():
    text = (
        "globl: {}\n"
        "global:\n"
        "  clusterName: [a]\n"
        "  preferIPv6: perhaps\n"
        "  clustername: x\n"
        "  speed: 1\n"
        "transformations:\n"
        "  - name: {}\n"
        "    nodeSelectors: []\n"
        "    labels:\n"
        "      a: [1]\n"
        "      b: x\n"
        "      b: y\n"
        "  - nodeSelector:\n"
        "      - matchExpressions:\n"
        "          - key: zone\n"
        "            operator: in\n"
        "  - web\n"
    )
    assert mistakes(text) == [
        (
            'f, line 1: the file has no key "globl", only global, transformations, ipam, ownership; '
            "did you mean global?"
        ),
        "f, line 3: global.clusterName is a list, not a text",
        'f, line 4: global.preferIPv6 is "perhaps", not true or false',
        "f, line 5: global.clusterName is duplicated",
        'f, line 6: global has no key "speed", only clusterName, preferIPv6, externalIPs',
        "f, line 8: transformations[0].name is a mapping, not a text",
        (
            'f, line 9: transformations[0] has no key "nodeSelectors", only name, nodeSelector, annotations, '
            "labels, taints, platformMetadata, features, sanitize; did you mean nodeSelector?"
        ),
        'f, line 11: transformations[0].labels["a"] is a list, not a text',
        'f, line 13: transformations[0].labels["b"] is duplicated',
        (
            'f, line 17: transformations[1].nodeSelector[0].matchExpressions[0].operator is "in", not one of '
            "In, NotIn, Exists, DoesNotExist, Gt, Lt, Regexp; did you mean In?"
        ),
        'f, line 18: transformations[2] is "web", not a mapping of keys to values',
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{discovery: maybe}", '.discovery is "maybe", not true or false'),
        ("{includeCIDRs: []}", ".includeCIDRs must have at least one network"),
        ("{includeCIDRs: 100.64.0.0/10}", '.includeCIDRs is "100.64.0.0/10", not a list'),
        (
            "{includeCIDRs: [100.64.0.1]}",
            '.includeCIDRs[0] is "100.64.0.1", which has no prefix length, as in 10.8.0.0/16',
        ),
        (
            "{excludeCIDRs: [100.64.1.0/10]}",
            '.excludeCIDRs[0] is "100.64.1.0/10", an address within 100.64.0.0/10: write the network itself',
        ),
        ("{exclude: []}", ' has no key "exclude", only discovery, includeCIDRs, excludeCIDRs; did you mean'),
    ],
)
def test_a_mistake_in_the_settings_of_external_ips_names_its_place(settings: str, message: str):
    with pytest.raises(CloudConfigError) as refused:
        parse_cloud_config(f"global: {{externalIPs: {settings}}}", "f")
    [mistake] = refused.value.mistakes
    assert mistake.startswith(f"f, line 1: global.externalIPs{message}")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("{operator: Exists}", "lacks key, which it must have"),
        ("{key: ~, operator: Exists}", "lacks key, which it must have"),
        ("{key: zone}", "lacks operator, which it must have"),
        ("{key: zone, operator: In}", ".values must have at least one value for In"),
        ("{key: zone, operator: NotIn, values: []}", ".values must have at least one value for NotIn"),
        ("{key: zone, operator: In, values: [~]}", ".values must have at least one value for In"),
        ("{key: zone, operator: In, values: a}", '.values is "a", not a list'),
        ("{key: zone, operator: Exists, values: [a]}", ".values must have no value for Exists"),
        ("{key: zone, operator: DoesNotExist, values: ['']}", ".values must have no value for DoesNotExist"),
        ("{key: zone, operator: Gt}", ".values must have exactly one value for Gt"),
        ("{key: zone, operator: Lt, values: [1, 2]}", ".values must have exactly one value for Lt"),
        ("{key: zone, operator: Gt, values: [1.5]}", '.values must have one integer for Gt, not "1.5"'),
        ("{key: zone, operator: Lt, values: [1_0]}", '.values must have one integer for Lt, not "1_0"'),
        ("{key: zone, operator: Regexp, values: []}", ".values must have exactly one value for Regexp"),
        (
            "{key: zone, operator: Regexp, values: ['a(']}",
            ".values must have one pattern (RE2, as in Go) for Regexp: missing ): a(",
        ),
        (
            "{key: zone, operator: Regexp, values: ['(?=a)']}",
            ".values must have one pattern (RE2, as in Go) for Regexp: invalid perl operator: (?=",
        ),
    ],
)
def test_each_operator_says_which_values_it_takes(expression: str, message: str):
    found = rule_mistakes(f"nodeSelector: [{{matchExpressions: [{expression}]}}]")
    path = "transformations[0].nodeSelector[0].matchExpressions[0]"
    assert found[0] == path + (message if message.startswith(".") else f" {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("labels: {a b: x}", 'labels["a b"] is not a valid key in Kubernetes: its name must be of letters'),
        ("labels: {'': x}", 'labels[""] is not a valid key in Kubernetes: its name must be of letters'),
        (
            "annotations: {A/b: x}",
            'annotations["A/b"] is not a valid key in Kubernetes: its part before the /',
        ),
        ("annotations: {a/b/c: x}", 'annotations["a/b/c"] is not a valid key in Kubernetes: its part before'),
        (
            f"taints: {{{'x' * 64}: NoExecute}}",
            f'taints["{"x" * 59}…"] is not a valid key in Kubernetes: its name is',
        ),
        ('labels: {a: "x\\u202ey"}', 'labels["a"] is "x y": a label value consists of letters'),
        (
            f"labels: {{a: {'x' * 64}}}",
            f'labels["a"] is "{"x" * 59}…": a label value has at most 63 characters',
        ),
        ("taints: {a: Never}", 'taints["a"] is "Never": a taint is value:Effect or Effect, with one of'),
        (
            "taints: {a: 'b:c:NoExecute'}",
            'taints["a"] is "b:c:NoExecute": a taint is value:Effect with a value',
        ),
        ("taints: {a: ~}", 'taints["a"] is "": a taint is value:Effect or Effect'),
        ("platformMetadata: {Tags: x}", 'platformMetadata["Tags"] cannot be overridden: it is a mapping'),
        ("platformMetadata: {zone: a, Zone: b}", 'platformMetadata["Zone"] is duplicated in another'),
        ("labels: [a]", "labels is a list, not a mapping of keys to values"),
        (
            "features: {publicIPDiscovery: 'true'}",
            'features.publicIPDiscovery is "true", not true or false, without',
        ),
        (
            "features: {publicIPs: true}",
            'features has no key "publicIPs", only publicIPDiscovery',
        ),
        (
            "labels: {a: !!binary aGk=}",
            'labels["a"] is not a plain text: it has the tag tag:yaml.org,2002:binary',
        ),
        ("labels: {a: !secret x}", 'labels["a"] is not a plain text: it has the tag !secret'),
        ("labels: {~: x}", "labels has a key that is not a plain text"),
        ("labels: {[a]: x}", "labels has a key that is not a plain text"),
        ("labels: {<<: 5}", "labels merges (<<) something other than a mapping or a list of mappings"),
    ],
)
def test_what_cannot_work_on_any_machine_is_a_mistake(text: str, message: str):
    (found,) = rule_mistakes(text)
    assert found.startswith(f"transformations[0].{message}")


def test_values_that_are_templates_or_will_be_sanitized_are_not_judged_yet():
    assert rule_of("labels: {a: '{{ .ProductName }} (x)'}, taints: {a: '{{ .Zone }}'}").labels
    assert rule_of("sanitize: true, labels: {a: 'Standard PC (i440FX + PIIX, 1996)'}").sanitize


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("taints: {node.kubernetes.io/not-ready: NoExecute}", "is skipped: Kubernetes sets and removes it"),
        (
            "taints: {node.cloudprovider.kubernetes.io/shutdown: NoSchedule}",
            "is skipped: it is the cloud provider's",
        ),
        ("labels: {talos.dev/zone: a}", "is skipped: it is Talos's own"),
        ("labels: {kubernetes.io/hostname: a}", "is skipped: it is the kubelet's own"),
        ("annotations: {node.alpha.kubernetes.io/ttl: '0'}", "is skipped: it is Kubernetes' own"),
        ("platformMetadata: {Hostname: a}", "is skipped: a machine's hostname cannot be overridden"),
        (
            "platformMetadata: {Regio: a}",
            "is skipped: no such metadata can be overridden; did you mean Region?",
        ),
        ("nodeSelector: [~]", "is empty and ignored"),
        (
            "nodeSelector: [{matchExpressions: [{key: Platfrom, operator: Exists}]}]",
            'names "platfrom", an unknown fact, which is absent on every machine; did you mean ',
        ),
    ],
)
def test_what_the_reference_passes_over_is_passed_over_with_a_warning(text: str, message: str):
    (warning,) = rule_warnings(text)
    assert message in warning


def test_files_that_grow_when_built_are_refused():
    anchored = "a0: &a " + "{" + ", ".join(f"k{n}: v" for n in range(5_000)) + "}\n"
    text = f"{anchored}transformations:\n" + "- labels: {<<: *a}\n" * 60
    assert mistakes(text) == ["f: it has more than 200000 values, with its aliases expanded"]
    assert mistakes("x" * (1 << 20) + "y") == ["f: it is longer than 1048576 bytes"]
    assert len(mistakes("".join(f"key{n}: 1\n" for n in range(5000)))) == 101


@pytest.mark.parametrize("text", [b"\xff\xfe\x00", b"a: \x80\n", "global: {}".encode("utf-16")])
def test_bytes_that_are_no_utf_8_are_refused(text: bytes):
    assert mistakes(text) == ["f: it is not UTF-8"]
