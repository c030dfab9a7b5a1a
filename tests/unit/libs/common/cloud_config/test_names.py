"""Keys, values, taints and patterns of the file, and the facts that it may name."""

import re
from typing import cast

import msgspec
import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.cloud_config.fact_fields import (
    FIELDS,
    FIELDS_BY_KEY,
    OVERRIDABLE,
    canonical_key,
    fact_values,
    find_field,
    list_queried_fields,
    required_resources,
    requires_system,
)
from libs.common.cloud_config.kubernetes_names import (
    TaintText,
    key_problem,
    label_value_problem,
    parse_taint,
    why_reserved,
)
from libs.common.cloud_config.model import Kind
from libs.common.cloud_config.selectors import PatternError, check_pattern, pattern_matches
from libs.common.contract.machine import Inventory, PlatformMetadata, Processors, SystemInformation
from tests.builders import make_facts

VALID_KEYS = (
    *("a", "A", "7", "a.b_c-d", "x" * 63, "example.com/a", "a/A", "1.2/x", "node-role.kubernetes.io/web"),
    f"{'a' * 253}/x",
)
INVALID_KEYS = (
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
)


@pytest.mark.parametrize("key", VALID_KEYS + INVALID_KEYS, ids=lambda key: key[:20])
def test_keys_are_those_that_kubernetes_takes(key: str):
    assert (key_problem(key) == "") == (key in VALID_KEYS)


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


RESERVED = (
    "annotations alpha.kubernetes.io/provided-node-ip",
    "annotations node.cloudprovider.kubernetes.io/talos-ccm-instance",
    "annotations node.cloudprovider.kubernetes.io/talos-ccm-owned",
    "labels extensions.talos.dev/gvisor",
    "labels kubernetes.io/hostname",
    "labels talos-ccm.node-restriction.kubernetes.io/instance",
    "labels talos-ccm.node-restriction.kubernetes.io/record",
    "platformMetadata hostname",
    "taints node.cloudprovider.kubernetes.io/uninitialized",
    "taints talos.dev/x",
)
FREE = (
    "annotations kubernetes.io/hostname",
    "labels kubernetes.io/role",
    "labels mytalos.dev/x",
    "labels node-role.kubernetes.io/web",
    "labels talos.dev",
    "labels topology.kubernetes.io/zone",
    "platformMetadata region",
    "labels talos.devs/x",
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


# ---- facts


ASKED = Inventory(
    talos_version="v1.13.9",
    machine_type="worker",
    extensions={"schematic": "376567", "gvisor": "20250505.0"},
    processors=Processors(manufacturer="GenuineIntel", model="Xeon", sockets=2, cores=16, threads=32),
    memory_mib=65536,
)


def test_the_reference_s_ten_keys_are_there_under_its_names():
    ten = "platform hostname region zone instancetype instanceid providerid spot internaldns externaldns"
    named = {field.key for field in FIELDS if field.in_reference == "selectors and templates"}
    assert named == set(ten.split())
    assert set(OVERRIDABLE) == named - {"platform", "hostname"}
    assert set(OVERRIDABLE.values()) <= set(PlatformMetadata.__struct_fields__)


def test_every_field_of_metadata_and_system_information_can_be_named():
    read = {field.key.replace("_", "") for field in FIELDS}
    ours = {*PlatformMetadata.__struct_fields__, *SystemInformation.__struct_fields__}
    assert {name.replace("_", "") for name in ours} <= read


def test_empty_fields_are_absent_for_selectors_and_spot_is_always_there():
    facts = make_facts(platform="metal", node_name="")
    fields = fact_values(msgspec.structs.replace(facts, system=SystemInformation()))
    assert fields.texts == {"platform": "metal", "spot": "false"}
    assert fields.values["Region"] == ""
    assert fields.values["Spot"] is False
    assert fields.values["UUID"] == ""  # a container has no SMBIOS; Go's template sees an empty struct
    assert fields.values["Tags"] == {}


def test_a_machine_says_all_that_it_was_asked_for():
    facts = make_facts(spot=True, tags={"Role": "db", "empty": ""}, uuid="U-1")
    fields = fact_values(msgspec.structs.replace(facts, inventory=ASKED))
    assert fields.unqueried == frozenset()
    expected = {
        "spot": "true",
        "uuid": "U-1",
        "nodename": "web-1",
        "tags.Role": "db",
        "tags.empty": "",
        "talosversion": "v1.13.9",
        "machinetype": "worker",
        "schematic": "376567",
        "extensions.gvisor": "20250505.0",
        "cpucores": "16",
        "cputhreads": "32",
        "cpumodel": "Xeon",
        "memorymib": "65536",
    }
    assert fields.texts.items() >= expected.items()
    assert fields.values["CPUCores"] == 16
    assert fields.values["Extensions"] == ASKED.extensions


def test_what_was_asked_for_and_is_not_there_is_absent_and_not_unasked():
    facts = msgspec.structs.replace(
        make_facts(uuid="U-1"), inventory=Inventory(talos_version="", processors=Processors())
    )
    fields = fact_values(facts)
    assert "talosversion" not in fields.texts
    assert fields.values["TalosVersion"] == ""
    assert fields.values["CPUCores"] == 0
    assert fields.unqueried == {"MachineType", "Schematic", "Extensions", "MemoryMiB"}


@pytest.mark.parametrize(
    ("written", "key", "known"),
    [
        ("ProviderID", "providerid", True),
        ("TAGS.Role", "tags.Role", True),
        ("tags.a.B", "tags.a.B", True),
        ("Extensions.gvisor", "extensions.gvisor", True),
        ("tags", "tags", False),
        ("tags.", "tags.", False),
        ("Region.X", "region.x", False),
        ("Rack", "rack", False),
        ("", "", False),
    ],
)
def test_keys_of_selectors_are_of_any_letter_case_and_names_in_maps_are_exact(
    written: str, key: str, known: bool
):
    assert canonical_key(written) == key
    assert (find_field(key) is not None) == known


def test_every_key_is_one_word_and_unique():
    assert len(FIELDS_BY_KEY) == len(FIELDS)
    assert all(re.fullmatch("[a-z]+", key) for key in FIELDS_BY_KEY)


SYSTEM = "SystemInformation"


@pytest.mark.parametrize(
    ("rule", "resources"),
    [
        ('annotations: {a: "{{ .Zone }}", b: TalosVersion, c: .TalosVersion, d: SerialNumber}', set()),
        ('labels: {a: "{{ .TalosVersion }}"}', {"Version"}),
        ('annotations: {a: "{{ with $ }}{{ $.MachineType }}{{ end }}"}', {"MachineType"}),
        ('taints: {a: "{{ .CPUCores }}:NoSchedule"}', {"Processor"}),
        ('platformMetadata: {zone: "{{ .MemoryMiB }}{{ .TalosVersion }}"}', {"MemoryModule", "Version"}),
        (
            "nodeSelector: [{matchExpressions: [{key: Extensions.gvisor, operator: Exists}]}]",
            {"ExtensionStatus"},
        ),
        ("nodeSelector: [{matchExpressions: [{key: tags.Role, operator: Exists}]}]", set()),
        ("nodeSelector: [{matchExpressions: [{key: extensions, operator: Exists}]}]", set()),
        ('annotations: {a: "{{ .SerialNumber }}"}', {SYSTEM}),
        ('platformMetadata: {zone: "{{ .MemoryMiB }}{{ .Version }}"}', {"MemoryModule", SYSTEM}),
        ("nodeSelector: [{matchExpressions: [{key: productName, operator: Exists}]}]", {SYSTEM}),
    ],
)
def test_talos_is_asked_for_more_only_where_a_rule_names_it(rule: str, resources: set[str]):
    config = parse_cloud_config("transformations: [{" + rule + "}]", "f")
    assert required_resources(config.rules) == resources - {SYSTEM}
    assert requires_system(config.rules, ()) == (SYSTEM in resources)
    names = {field.name for field in list_queried_fields(config.rules[0])}
    assert bool(names) == bool(resources)
    assert names <= fact_values(make_facts()).unqueried
    asked = msgspec.structs.replace(make_facts(uuid="U-1"), inventory=ASKED)
    assert not names & fact_values(asked).unqueried
