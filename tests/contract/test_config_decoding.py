"""A config file is read as the reference's own decoder reads it; what came out of that stands beside this."""

import json
from pathlib import Path
from typing import Any, Final

from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.cloud_config.model import CloudConfig, Rule
from tests.tables import naming

HERE: Final = Path(__file__).parent / "config_decoding"
CASES: Final[list[str]] = json.loads((HERE / "cases.json").read_text())
DECODED: Final[list[dict[str, Any]]] = json.loads((HERE / "decoded.json").read_text())
TAKEN: Final = [each for each in DECODED if "file" in each]
REFUSED: Final = [each for each in DECODED if "refused" in each]

# Files that the reference accepts and we reject: part of our error -> why this is no loss.
WE_REFUSE: Final = {
    "is not a plain text": "a tag, or no key at all: never intended",
    "has no key": "a misspelt key, which the reference passes over",
    "found another document": "the reference passes over all but the first",
    "lacks key": "the reference fails at the first node",
}
# What the reference refuses and we take.
WE_TAKE: Final = {
    "EOF": "an empty file says nothing",
    "found incompatible YAML document": "%YAML 1.2, which other parsers reject too",
    "cannot decode !!str `x` as a !!int": "a text, whatever its author called it",
}


def told(text: str) -> str:
    """The mistakes of that text, "" if there are none."""
    try:
        parse_cloud_config(text, "f")
    except CloudConfigError as error:
        return str(error)
    return ""


def as_decoded(config: CloudConfig) -> dict[str, Any]:
    return {
        "global": {"clusterName": config.cluster_name or "", "preferIPv6": config.prefer_ipv6 or False},
        "transformations": [rule_as_decoded(rule) for rule in config.rules],
    }


def rule_as_decoded(rule: Rule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "nodeSelector": [
            [(each.key, each.operator, list(each.values)) for each in term.requirements]
            for term in rule.selector
        ],
        "annotations": {entry.key: entry.template for entry in rule.annotations},
        "labels": {entry.key: entry.template for entry in rule.labels},
        "taints": {entry.key: entry.template for entry in rule.taints},
        "platformMetadata": {entry.key.replace("_", ""): entry.template for entry in rule.platform_metadata},
        "publicIPDiscovery": bool(rule.public_ip_discovery),
    }


def as_read(file: dict[str, Any]) -> dict[str, Any]:
    """Go's nil and empty are one, keys of selectors and metadata have no letter case."""
    rules = [
        {
            "name": rule["name"],
            "nodeSelector": [
                [
                    (each["key"].lower(), each["operator"], each["values"] or [])
                    for each in term["matchExpressions"] or []
                ]
                for term in rule["nodeSelector"] or []
            ],
            **{kind: rule[kind] or {} for kind in ("annotations", "labels", "taints")},
            "platformMetadata": {key.lower(): text for key, text in (rule["platformMetadata"] or {}).items()},
            "publicIPDiscovery": rule["features"]["publicIPDiscovery"],
        }
        for rule in file["transformations"] or []
    ]
    return {"global": file["global"], "transformations": rules}


def test_what_was_decoded_are_these_cases():
    assert [each["text"] for each in DECODED] == CASES, "make config-decoding"
    assert len(TAKEN) > 60
    assert len(REFUSED) > 30


def test_each_difference_that_is_named_happens():
    mistakes = [told(each["text"]) for each in TAKEN]
    assert all(any(part in each for each in mistakes) for part in WE_REFUSE)
    assert all(any(part in each["refused"] for each in REFUSED) for part in WE_TAKE)


def test_what_the_reference_takes_is_read_as_it_reads_it():
    for case in TAKEN:
        with naming(case["text"]):
            mistakes = told(case["text"])
            if mistakes:
                assert any(part in mistakes for part in WE_REFUSE), mistakes
                continue
            config = parse_cloud_config(case["text"], "f")
            if config.differences:  # another letter case, which the reference passes over
                continue
            assert as_decoded(config) == as_read(case["file"])


def test_what_the_reference_refuses_is_refused():
    for case in REFUSED:
        with naming(case["text"]):
            if any(part in case["refused"] for part in WE_TAKE):
                assert told(case["text"]) == ""
            else:
                assert told(case["text"])
