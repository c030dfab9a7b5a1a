"""The committed JSON Schema is what the tables say."""

import json
from pathlib import Path

from libs.common.cloud_config.fields import FIELDS
from libs.common.cloud_config.schema import cloud_config_schema, schema_text
from libs.common.cloud_config.shape import FILE, OPERATORS, POOL, RULE

COMMITTED = Path(__file__).parents[2] / "docs" / "cloud-config.schema.json"


def test_the_committed_schema_is_fresh():
    assert COMMITTED.read_text() == schema_text(), "make cloud-config-schema"


def test_every_key_stands_in_the_schema_with_a_sentence():
    rule = cloud_config_schema()["properties"]["transformations"]["items"]
    assert set(rule["properties"]) == {key.name for key in RULE}
    assert set(cloud_config_schema()["properties"]) == {key.name for key in FILE}
    assert all(each["description"].endswith(".") for each in rule["properties"].values())
    assert rule["additionalProperties"] is False


def test_what_a_pool_may_say_stands_in_the_schema_too():
    pool = cloud_config_schema()["properties"]["ipam"]["properties"]["pools"]["items"]
    assert pool["required"] == ["name", "cidrs"]
    assert set(pool["properties"]) == {key.name for key in POOL}
    mask = pool["properties"]["maskSizeIPv4"]
    assert (mask["type"], mask["minimum"], mask["maximum"]) == (["integer", "null"], 12, 32)


def test_operators_and_facts_are_told_to_editors():
    text = json.dumps(cloud_config_schema())
    assert all(f'"{operator}"' in text for operator in OPERATORS)
    assert all(field.help in text for field in FIELDS)
