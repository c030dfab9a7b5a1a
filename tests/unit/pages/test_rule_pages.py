"""docs/rules.md, rules-reference.md and ownership.md: their examples are tested, their tables complete."""

import re
from typing import Final

import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.cloud_config.fact_fields import FIELDS, OVERRIDABLE, fact_values
from libs.common.cloud_config.kubernetes_names import _KEYS, _PREFIXES
from libs.common.contract.controllers import CLOUD_NODE, NODE_CONTROLLER_NAMES
from libs.common.contract.machine import (
    Inventory,
    MachineFacts,
    PlatformMetadata,
    Processors,
    SystemInformation,
)
from libs.common.contract.node import Node
from libs.gotemplate import parse, record, render
from libs.gotemplate.functions import FUNCTIONS
from services.labeler.core.plan.plan import ClusterConfig
from services.labeler.core.plan.plan_node import plan_node, plan_unreachable_node
from services.labeler.core.rules.application import apply_rules
from services.labeler.core.rules.compilation import NO_RULES, compile_rules
from services.labeler.core.rules.effects import RuleEffects
from tests.architecture.sources import ROOT
from tests.builders import NOW, make_facts, make_node, make_unreachable

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
        *(f"left out: rule {rule}, {each.kind} {each.key}" for rule, each in effects.list_skipped()),
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


# ---- ownership


OWNERSHIP: Final = (ROOT / "docs" / "ownership.md").read_text()
OWNERSHIP_EXAMPLES: Final = re.findall(
    r"```yaml\n(.*?)```\n\n```text\nours: (.*?)\n```", OWNERSHIP, re.DOTALL
)
OWNERSHIP_ROW: Final = re.compile(r"^\| `([a-z]+-[0-9])` \|(.*)\|(.*)\|(.*)\|$", re.MULTILINE)


def bare(cell: str) -> str:
    """What stands in backquotes, "" without."""
    return cell.strip().strip("`") if "`" in cell else ""


def the_nodes() -> list[tuple[Node, MachineFacts | None]]:
    """Those of the table, and what their machines say."""
    found: list[tuple[Node, MachineFacts | None]] = []
    for name, team, has, gets in OWNERSHIP_ROW.findall(OWNERSHIP):
        provider_id = bare(has) or bare(gets)
        ip = provider_id.rpartition("/")[2] if provider_id.startswith("talos") else "10.0.0.9"
        node = make_node(
            name, ip=ip, labels={"team": bare(team)} if bare(team) else {}, provider_id=bare(has)
        )
        facts = None
        if provider_id:
            native = "" if provider_id.startswith("talos") else provider_id
            platform = "hcloud" if native else "metal"
            facts = make_facts(node_name=name, node_ip=ip, platform=platform, provider_id=native)
        found.append((node, facts))
    return found


@pytest.mark.parametrize(("text", "ours"), OWNERSHIP_EXAMPLES)
def test_the_labeler_has_the_nodes_that_stand_below_the_example(text: str, ours: str):
    config = parse_cloud_config(text, "f")
    assert config.warnings == ()
    everything = ClusterConfig(rules=NO_RULES, ownership=config.ownership.for_controller(CLOUD_NODE))
    planned = {
        node.name: plan_node(node, facts, "nodename", everything)
        if facts
        else plan_unreachable_node(node, make_unreachable(node), everything)
        for node, facts in the_nodes()
    }
    assert [name for name, plan in planned.items() if plan.outcome != "not-ours"] == ours.split()


def test_what_the_nodes_of_the_table_would_be_given_they_are_given():
    for node, facts in the_nodes():
        if facts is not None and not node.spec.provider_id:
            given = plan_node(node, facts, "nodename", ClusterConfig()).changes.provider_id
            assert given is not None
            assert f"`{given}`" in OWNERSHIP


def test_names_and_reasons_of_the_page_on_ownership_exist():
    for name in ("cloud-node", "node-csr-approval", "node-ipam-controller", "cloud-node-lifecycle"):
        assert f"`{name}`" in OWNERSHIP
        assert name in NODE_CONTROLLER_NAMES
    blocked = plan_node(
        make_node(),
        make_facts(),
        "nodename",
        ClusterConfig(ownership=parse_cloud_config(OWNERSHIP_EXAMPLES[2][0], "f").ownership.default),
    ).blocker
    assert blocked is not None
    assert f"`{blocked.reason}`" in OWNERSHIP
