"""docs/rules.md and rules-reference.md: their examples are tested, their tables are complete."""

import re
from typing import Final

import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.cloud_config.fact_fields import FIELDS, OVERRIDABLE, fact_values
from libs.common.cloud_config.reserved_keys import _KEYS, _PREFIXES
from libs.common.contract.machine import (
    Inventory,
    MachineFacts,
    PlatformMetadata,
    Processors,
    SystemInformation,
)
from libs.gotemplate import parse, record, render
from libs.gotemplate.bounds import MAX_STEPS
from libs.gotemplate.functions import FUNCTIONS
from services.labeler.rules import RuleEffects, apply_rules, compile_rules
from services.labeler.rules.bounds import MAX_ANNOTATION, MAX_ENTRIES, MAX_NODE_STEPS, MAX_RULES
from tests.architecture.sources import ROOT
from tests.builders import NOW

PREVIEW: Final = "\n## Preview rules\n"  # its example: tests/unit/cli/render/test_render.py
GUIDE: Final = (ROOT / "docs" / "rules.md").read_text().partition(PREVIEW)[0]
PAGE: Final = GUIDE + (ROOT / "docs" / "rules-reference.md").read_text()
EXAMPLES: Final = re.findall(r"```yaml\n(.*?)```.*?```text\n(.*?)```", PAGE, re.DOTALL)
ROWS: Final = re.findall(r"^\| `(\{\{.*\}\}.*?)` \| `(.*)` \|$", PAGE, re.MULTILINE)
MACHINE: Final = MachineFacts(
    platform=PlatformMetadata(
        platform="nocloud",
        hostname="web-1",
        region="region-1",
        zone="pve-1",
        instance_type="8VCPU-16GB",
        instance_id="12345",
        provider_id="proxmox://region-1/12345",
    ),
    system=SystemInformation(manufacturer="QEMU", product_name="Standard PC (i440FX + PIIX, 1996)"),
    queried_at=NOW,
    node_ip="10.0.0.5",
    inventory=Inventory(
        talos_version="v1.13.2",
        machine_type="worker",
        extensions={"qemu-guest-agent": "9.2.0"},
        processors=Processors(sockets=1, cores=8, threads=8),
        memory_mib=16_384,
    ),
)


def in_lines(effects: RuleEffects) -> list[str]:
    overridden = (
        f"{field.name} {getattr(effects.platform, OVERRIDABLE[field.key])}"
        for field in FIELDS
        if field.key in OVERRIDABLE
        and getattr(effects.platform, OVERRIDABLE[field.key]) != field.read(MACHINE)
    )
    return [
        *(f"annotation {key}={value}" for key, value in effects.annotations.items()),
        *(f"label {key}={value}" for key, value in effects.labels.items()),
        *(f"taint {taint.key}={taint.value}:{taint.effect}" for taint in effects.taints),
        *overridden,
        *(f"left out: rule {each.rule}, {each.kind} {each.key}" for each in effects.skipped),
    ]


@pytest.mark.parametrize(("text", "gives"), EXAMPLES)
def test_an_example_gives_what_stands_below_it(text: str, gives: str):
    config = parse_cloud_config(text, "example")
    rules = compile_rules(config)
    assert not config.warnings
    assert not rules.warnings
    assert in_lines(apply_rules(rules, MACHINE)) == gives.splitlines()


@pytest.mark.parametrize(("template", "gives"), ROWS)
def test_a_template_of_the_table_gives_what_stands_beside_it(template: str, gives: str):
    source = template.replace(r"\|", "|")
    assert render(parse(source), record("Machine", fact_values(MACHINE).values)) == gives


def test_the_page_has_the_examples_that_are_tested():
    assert PAGE.count("```yaml") == len(EXAMPLES) == 3
    assert PAGE.count("| `{{") == len(ROWS)


def test_every_field_every_function_and_every_refused_key_is_named():
    missing = [field.name for field in FIELDS if f"`.{field.name}`" not in PAGE]
    missing += [name for name in FUNCTIONS if not re.search(rf"[` ]{name}[` ]", PAGE)]
    keys = {key for kind, keys in _KEYS.items() if kind != "platformMetadata" for key in keys}
    missing += [key for key in (*keys, *_PREFIXES) if f"`{key}`" not in PAGE]
    assert not missing


def test_every_field_is_marked_as_the_reference_has_it():
    rows = [line.split("|")[1:3] for line in PAGE.splitlines() if line.startswith("| ") and "`." in line]
    for field in FIELDS:
        in_templates, in_selectors = next(row for row in rows if f"`.{field.name}`" in row[0])
        assert ("*new*" not in in_templates) == (field.in_reference != ""), field.name
        assert ("*new*" not in in_selectors) == (field.in_reference == "selectors and templates"), field.name


def test_the_bounds_are_those_of_the_code():
    for number in (MAX_RULES, MAX_ANNOTATION):
        assert re.search(rf"\b{number}\b", PAGE)
    for number in (MAX_ENTRIES, MAX_NODE_STEPS, MAX_STEPS):
        assert f"{number:,}" in PAGE
