"""What the section on facts of docs/contributing/add-a-fact-or-rule-field.md promises."""

from pathlib import Path
from typing import Any, get_args

import msgspec

from cli.render.samples import load_samples
from libs.common.cloud_config.document import parse_cloud_config
from libs.common.cloud_config.fact_fields import TalosResource, fact_values
from libs.common.cloud_config.required_resources import required_resources
from libs.common.contract.machine import Inventory
from libs.talos.inventory_reading import read_part
from libs.talos.resources import INVENTORY
from libs.testbed.machine_facts import make_machine
from libs.testbed.sim_machines.protobuf_wire import encode
from libs.testbed.sim_machines.resource_state import StoredResource, encode_resource
from libs.testbed.sim_machines.resources import build_resources
from services.labeler.rules.application import apply_rules
from services.labeler.rules.compilation import compile_rules
from services.metadata.nodes.inventory_state import get_part
from tests.builders import make_facts

ROOT = Path(__file__).parents[2]
PART: Any = "HostnameStatus"
EMPTY: Any = {"domain_name": ""}  # a field that Inventory does not have yet


def check(name: str) -> None:
    """Check the way of the fact from a machine to a label, and the docs."""
    assert PART in get_args(TalosResource), "mypy accepts no other name"
    config = parse_cloud_config(f'transformations: [{{labels: {{domain: "{{{{ .{name} }}}}"}}}}]', "f")
    assert required_resources(config.rules) == {PART}
    inventory = read_part(PART, [encode_machine(domainname="corp.example")])
    assert get_part(inventory, PART) == "corp.example"
    assert read_part(PART, []) == Inventory(**EMPTY)
    facts = msgspec.structs.replace(make_facts(), inventory=inventory)
    assert fact_values(facts).texts[name.lower()] == "corp.example"
    rules = compile_rules(config)
    assert not rules.warnings
    assert apply_rules(rules, facts).labels == {"domain": "corp.example"}
    sampled = load_samples()["metal"].facts.inventory
    assert sampled is not None
    assert get_part(sampled, PART) == "example.com"
    assert f"| *new*: `.{name}` | the same (*new*) |" in (ROOT / "docs/rules-reference.md").read_text()


def encode_machine(domainname: str) -> bytes:
    """Return the resource of a simulated machine, as Talos sends it."""
    ref = INVENTORY[PART]
    machine = make_machine("web-1", "10.0.0.5", hostname="web-1", domainname=domainname)
    (found,) = (each for each in build_resources(machine) if each.type == ref.type and each.id == ref.id)
    return encode({1: encode_resource(StoredResource(found, 1, 0, 0))})
