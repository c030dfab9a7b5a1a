"""The committed JSON Schema is what the tables say."""

import json

from libs.common.cloud_config.fact_fields import FIELDS
from libs.common.cloud_config.file_keys import FILE_KEYS, OPERATORS, OWNERSHIP, POOL, RULE
from libs.common.contract.controllers import NODE_CONTROLLER_NAMES
from tools.cloud_config_schema import build_schema, render_schema
from tools.registered_metrics import ROOT

COMMITTED = ROOT / "docs" / "cloud-config.schema.json"


def test_the_committed_schema_is_fresh():
    assert COMMITTED.read_text() == render_schema(), "make cloud-config-schema"


def test_every_key_stands_in_the_schema_with_a_sentence():
    rule = build_schema()["properties"]["transformations"]["items"]
    assert set(rule["properties"]) == {key.name for key in RULE}
    assert set(build_schema()["properties"]) == {key.name for key in FILE_KEYS}
    assert all(each["description"].endswith(".") for each in rule["properties"].values())
    assert rule["additionalProperties"] is False


def test_what_a_pool_may_say_stands_in_the_schema_too():
    pool = build_schema()["properties"]["ipam"]["properties"]["pools"]["items"]
    assert pool["required"] == ["name", "cidrs"]
    assert set(pool["properties"]) == {key.name for key in POOL}
    mask = pool["properties"]["maskSizeIPv4"]
    assert (mask["type"], mask["minimum"], mask["maximum"]) == (["integer", "null"], 12, 32)


def test_what_may_be_said_of_ownership_stands_in_the_schema_too():
    ownership = build_schema()["properties"]["ownership"]
    assert set(ownership["properties"]) == {key.name for key in OWNERSHIP}
    assert ownership["properties"]["providerIDSchemes"]["minItems"] == 1
    of_controller = ownership["properties"]["controllers"]["items"]
    assert of_controller["required"] == ["name"]
    assert set(of_controller["properties"]["name"]["enum"]) == set(NODE_CONTROLLER_NAMES)
    term = ownership["properties"]["nodeSelector"]["items"]["properties"]
    assert "anyOf" not in term["matchExpressions"]["items"]["properties"]["key"], "a label is no fact"


def test_operators_and_facts_are_reported_to_editors():
    text = json.dumps(build_schema())
    assert all(f'"{operator}"' in text for operator in OPERATORS)
    assert all(field.help in text for field in FIELDS)
