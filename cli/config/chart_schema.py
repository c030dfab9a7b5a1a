"""Checks the chart's values against its schema, as Helm does. Pure.

The schema is a generated copy, because the chart is not installed with this command. Only the JSON Schema
keywords of the chart's schema are supported. A test compares the results with those of a complete validator.
"""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Final

from libs.common.cloud_config.findings import Findings, suggest_name, truncate_line
from libs.common.cloud_config.model import Finding
from libs.common.contract.services import SERVICE_TABLE

CHART: Final[dict[str, Any]] = json.loads((files("cli.config") / "chart.json").read_text())
_NAMES: Final = {
    "object": "a mapping",
    "array": "a list",
    "string": "a string",
    "integer": "a whole number",
    "boolean": "true or false",
}
# keys of Helm itself, and one that is rejected elsewhere with a better message
_OTHER_RULES: Final = {"global", "useDaemonSet"}
_DEFAULTED: Final = {  # null means the default, is harmless, or is checked elsewhere
    "enabledControllers",
    "podAnnotations",
    "console",
    "metrics",
    *(f"services.{spec.service}{key}" for spec in SERVICE_TABLE for key in ("", ".resources")),
    "resources",
    "nats.resources",
    "nats.bootstrap.resources",
    "updateStrategy.rollingUpdate",
    "image",
    "image.tag",
    "image.repository",
    "image.pullPolicy",
    "image.digest",
    "extraArgs",
}


def make_finding(path: str, sentence: str) -> Finding:
    """Return a finding whose text is `path: sentence`."""
    return Finding(path=f"{path}:", problem=sentence)


def find_value(parent: Any, path: str) -> Any:
    """Return the value at a path of keys such as `nats.external.url`; None if there is none."""
    for key in path.split("."):
        parent = parent.get(key) if isinstance(parent, dict) else None
    return parent


def check_schema(values: dict[str, Any]) -> Findings:
    """Check the types, formats and keys of all values: mistakes, and warnings of values without effect."""
    judged = Findings()
    _check_value(values, CHART["schema"], "", judged)
    return judged


def _check_value(value: Any, schema: dict[str, Any], path: str, judged: Findings) -> None:
    problem = _find_type_problem(value, schema) or next(_find_form_problems(value, schema), "")
    if problem:
        judged.add_mistake(0, f"{path}:", problem)
    elif isinstance(value, dict):
        _check_keys(value, schema, path, judged)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_value(item, schema.get("items", {}), f"{path}[{index}]", judged)


def _check_keys(value: dict[Any, Any], schema: dict[str, Any], path: str, judged: Findings) -> None:
    known, others = schema.get("properties"), schema.get("additionalProperties", {})
    for key in schema.get("required", ()):
        if key not in value:
            judged.add_mistake(0, f"{path}.{key}:", "is missing")
    for key, item in value.items():
        here = f"{path}.{truncate_line(str(key))}" if path else truncate_line(str(key))
        if known and key in known:
            _check_known_keys(item, known[key], here, judged)
        elif others is False or not _is_valid_name(str(key), schema.get("propertyNames", {})):
            hint = suggest_name(str(key), list(known or ()))
            judged.add_mistake(0, f"{here}:", f"the chart rejects this key{hint}")
        elif known and here not in _OTHER_RULES:
            hint = suggest_name(str(key), list(known))
            judged.add_warning(0, f"{here}:", f"has no effect: the chart has no such value{hint}")
        elif item is not None:
            _check_value(item, others, here, judged)


def _is_valid_name(name: str, rule: dict[str, Any]) -> bool:
    if "not" in rule:
        return not _is_valid_name(name, rule["not"])
    if "anyOf" in rule:
        return any(_is_valid_name(name, each) for each in rule["anyOf"])
    return name in rule.get("enum", [name]) and re.search(rule.get("pattern", ""), name) is not None


def _check_known_keys(item: Any, schema: dict[str, Any], path: str, judged: Findings) -> None:
    if item is not None:
        _check_value(item, schema, path, judged)
    elif path in _DEFAULTED:
        return
    elif "properties" in schema:  # the chart reads keys of this mapping
        judged.add_mistake(0, f"{path}:", "must be a mapping, but has no value. Remove the key")
    else:  # Helm removes the default of such a key before it validates
        risk = ": the installation may fail" if "." in path else ""
        text = f"has no value, which removes the chart's default{risk}"
        judged.add_warning(0, f"{path}:", text)


def _find_type_problem(value: Any, schema: dict[str, Any]) -> str:
    wanted = schema.get("type", [])
    types = wanted if isinstance(wanted, list) else [wanted]
    if not types or any(_has_type(value, each) for each in types):
        return ""
    quote = ". Quote it" if "string" in types and not isinstance(value, dict | list) else ""
    return f"must be {' or '.join(_NAMES[each] for each in types)}, but is {_describe_type(value)}{quote}"


def _find_form_problems(value: Any, schema: dict[str, Any]) -> Iterator[str]:
    if "enum" in schema and not any(_is_equal(value, each) for each in schema["enum"]):
        yield f"must be one of {', '.join(map(_text, schema['enum']))}, but is {_describe_type(value)}"
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            yield "must not be empty"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f'"{truncate_line(value)}" does not have the form {schema["pattern"]}'
    elif isinstance(value, list) and len(value) < schema.get("minItems", 0):
        yield "must not be empty"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            yield f"must be at least {schema['minimum']}, but is {value}"
        if "maximum" in schema and value > schema["maximum"]:
            yield f"must be at most {schema['maximum']}, but is {value}"


def _has_type(value: Any, kind: str) -> bool:
    if kind == "integer":
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return whole and not isinstance(value, bool)
    return isinstance(value, {"object": dict, "array": list, "string": str, "boolean": bool}[kind])


def _is_equal(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _describe_type(value: Any) -> str:
    if isinstance(value, dict | list):
        return _NAMES["object" if isinstance(value, dict) else "array"]
    return f'the string "{truncate_line(value)}"' if isinstance(value, str) else _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else truncate_line(json.dumps(value, default=str))
