"""What Kubernetes takes as keys, label values and taints; which keys are refused; which patterns are none."""

from typing import cast

import pytest

from libs.common.cloud_config.kubernetes_names import (
    TaintText,
    key_problem,
    label_value_problem,
    parse_taint,
    why_reserved,
)
from libs.common.cloud_config.model import Kind
from libs.common.cloud_config.selectors import PatternError, check_pattern, pattern_matches


@pytest.mark.parametrize(
    "key",
    [
        *("a", "A", "7", "a.b_c-d", "x" * 63, "example.com/a", "a/A", "1.2/x", "node-role.kubernetes.io/web"),
        f"{'a' * 253}/x",
    ],
)
def test_keys_that_kubernetes_takes(key: str):
    assert key_problem(key) == ""


@pytest.mark.parametrize(
    "key",
    [
        *(
            "",
            "/",
            "a/",
            "/a",
            "a/b/c",
            "-a",
            "a-",
            ".a",
            "a b",
            "a\n",
            "é",
            "A.com/x",
            "a_b/x",
            "a..b/x",
            "-a/x",
        ),
        *("x" * 64, f"{'a' * 254}/x", "x" * 100_000, "a/" + "-" * 100_000),
    ],
    ids=lambda key: key[:20],
)
def test_keys_that_kubernetes_refuses(key: str):
    assert key_problem(key)


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        *(("", True), ("a", True), ("A.b_c-9", True), ("x" * 63, True)),
        *(("x" * 64, False), ("a ", False), ("-a", False), ("a/b", False), ("a\n", False), ("é", False)),
        ("Standard PC (i440FX)", False),
    ],
)
def test_label_values(value: str, taken: bool):
    assert (label_value_problem(value) == "") == taken


@pytest.mark.parametrize(
    ("text", "taint"),
    [
        ("NoSchedule", TaintText("", "NoSchedule")),
        (":PreferNoSchedule", TaintText("", "PreferNoSchedule")),
        ("ceph:NoExecute", TaintText("ceph", "NoExecute")),
    ],
)
def test_taints_are_taken_apart(text: str, taint: TaintText):
    assert parse_taint(text) == taint


@pytest.mark.parametrize(
    "text",
    ["", "ceph", "noschedule", "ceph:", "NoSchedule:ceph", "a:b:NoSchedule", " NoSchedule", "a b:NoExecute"],
)
def test_texts_that_are_no_taint_say_what_was_expected(text: str):
    with pytest.raises(ValueError, match=r"^value:Effect"):
        parse_taint(text)


RESERVED = (
    "annotations alpha.kubernetes.io/provided-node-ip",
    "annotations node.cloudprovider.kubernetes.io/talos-ccm-owned",
    "labels extensions.talos.dev/gvisor",
    "labels kubernetes.io/hostname",
    "labels talos-ccm.node-restriction.kubernetes.io/record",
    "platformMetadata hostname",
    "taints node.cloudprovider.kubernetes.io/uninitialized",
    "taints talos.dev/x",
)
FREE = (
    "annotations kubernetes.io/hostname",
    "labels node-role.kubernetes.io/web",
    "labels talos.dev",
    "labels topology.kubernetes.io/zone",
    "platformMetadata region",
    "taints node.kubernetes.io/out-of-service",
)


@pytest.mark.parametrize("name", RESERVED + FREE)
def test_keys_of_others_are_rejected(name: str):
    kind, key = name.split()
    assert bool(why_reserved(cast("Kind", kind), key)) == (name in RESERVED)


@pytest.mark.parametrize(
    "pattern", ["(", "a{1001}", "(?=a)", r"(a)\1", r"\C", r"\\\C", "[z-a]", "x" * 10_001, r"\pL{1000}"]
)
def test_what_is_no_pattern_says_so(pattern: str):
    with pytest.raises(PatternError):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("", "", True),
        ("b", "abc", True),
        ("^b", "abc", False),
        (r"\\C", r"\C", True),
        (r"\pL+é$", "caf\u00e9", True),
        ("(?i)WEB", "web-1", True),
        (".", "\n", False),
        ("(?s).", "\n", True),
        (r"\z", "a", True),
        (".", "\ud800", True),  # no character, and no exception
    ],
)
def test_patterns_are_found_as_in_go(pattern: str, text: str, found: bool):
    check_pattern(pattern)
    assert pattern_matches(pattern, text) == found
