"""What selectors and templates may name, and when Talos must be asked for more."""

import re

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
from libs.common.contract.machine import Inventory, PlatformMetadata, Processors, SystemInformation
from tests.builders import make_facts

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


@pytest.mark.parametrize(
    ("rule", "resources"),
    [
        ('annotations: {a: "{{ .Zone }}", b: TalosVersion, c: .TalosVersion}', set()),
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
    ],
)
def test_talos_is_asked_for_more_only_where_a_rule_names_it(rule: str, resources: set[str]):
    config = parse_cloud_config("transformations: [{" + rule + "}]", "f")
    assert required_resources(config.rules) == resources
    names = {field.name for field in list_queried_fields(config.rules[0])}
    assert bool(names) == bool(resources)
    assert names <= fact_values(make_facts()).unqueried
    assert not names & fact_values(msgspec.structs.replace(make_facts(), inventory=ASKED)).unqueried


@pytest.mark.parametrize(
    ("rule", "needed"),
    [
        ('annotations: {a: "{{ .Zone }}", b: SerialNumber}', False),
        ('annotations: {a: "{{ .SerialNumber }}"}', True),
        ('platformMetadata: {zone: "{{ .MemoryMiB }}{{ .Version }}"}', True),
        ("nodeSelector: [{matchExpressions: [{key: productName, operator: Exists}]}]", True),
    ],
)
def test_smbios_is_queried_only_where_a_rule_names_it_and_is_unqueried_before(rule: str, needed: bool):
    config = parse_cloud_config("transformations: [{" + rule + "}]", "f")
    assert requires_system(config.rules, ()) == needed
    names = {field.name for field in list_queried_fields(config.rules[0]) if field.is_system}
    assert bool(names) == needed
    assert names <= fact_values(make_facts()).unqueried
    assert not names & fact_values(make_facts(uuid="U-1")).unqueried
