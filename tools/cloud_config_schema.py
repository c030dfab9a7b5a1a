"""`python -m tools.cloud_config_schema`: prints the JSON Schema of the --cloud-config file, for editors.

It follows the tables that parse the file. A schema is case-sensitive: it requires the standard spelling,
while the parser accepts any letter case.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from libs.common.cloud_config.fact_fields import FIELDS, OVERRIDABLE, FactField
from libs.common.cloud_config.file_keys import (
    FILE_KEYS,
    NODE_REQUIREMENT,
    OPERATORS,
    POOL_NAME,
    REQUIREMENT,
    SCHEME,
    FileKey,
)
from libs.common.cloud_config.kubernetes_names import EFFECTS
from libs.common.contract.controllers import NODE_CONTROLLER_NAMES

# The reference's decoder accepts any scalar as a text, and null as the empty text.
_TEXT: Final[dict[str, Any]] = {"type": ["string", "number", "boolean"]}
_TEXT_OR_NOTHING: Final[dict[str, Any]] = {"type": ["string", "number", "boolean", "null"]}
_QUALIFIED: Final = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_NETWORK: Final = r"^[0-9A-Fa-f.:]+/[0-9]{1,3}$"
_LABEL_VALUE: Final = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
_SCALARS: Final[dict[str, dict[str, Any]]] = {  # by kind
    "operator": {"enum": list(OPERATORS)},
    "label key": {"type": "string", "pattern": _QUALIFIED},
    "label value": {**_TEXT_OR_NOTHING, "maxLength": 63, "pattern": _LABEL_VALUE},
    "boolean": {"type": ["boolean", "null"]},
    "name": {"type": "string", "pattern": POOL_NAME},
    "controller": {"enum": list(NODE_CONTROLLER_NAMES)},
    "former": {"deprecated": True},
}
_MANY: Final[dict[str, Any]] = {"required": ["values"], "properties": {"values": {"minItems": 1}}}
_ONE: Final[dict[str, Any]] = {
    "required": ["values"],
    "properties": {"values": {"minItems": 1, "maxItems": 1}},
}
_NONE: Final[dict[str, Any]] = {"properties": {"values": {"maxItems": 0}}}
_VALUES_OF: Final = {"In": _MANY, "NotIn": _MANY, "Exists": _NONE, "DoesNotExist": _NONE}


def build_schema() -> dict[str, Any]:
    """Return the JSON Schema, draft 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": "Written by `make cloud-config-schema`. Do not edit.",
        "title": "--cloud-config of the Talos cloud controller manager",
        **_mapping(FILE_KEYS),
        "type": ["object", "null"],
    }


def render_schema() -> str:
    """Return the schema as committed."""
    return json.dumps(build_schema(), indent=2, ensure_ascii=False) + "\n"


def _mapping(keys: Sequence[FileKey]) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {key.name: {"description": key.help, **_value(key)} for key in keys},
    }
    required = [key.name for key in keys if key.is_required]
    if required:
        shape["required"] = required
    if keys in (REQUIREMENT, NODE_REQUIREMENT):
        shape["allOf"] = [_if_operator(operator, _VALUES_OF.get(operator, _ONE)) for operator in OPERATORS]
    return shape


def _value(key: FileKey) -> dict[str, Any]:
    match key.kind:
        case "text":
            return _TEXT_OR_NOTHING
        case "fact key":
            return _fact()
        case "number":
            return {"type": ["integer", "null"], "minimum": key.bounds[0], "maximum": key.bounds[1]}
        case "templates":
            return _overrides() if key.name == "platformMetadata" else _templates(key)
        case "mapping":
            return {**_mapping(key.keys), "type": ["object", "null"]}
        case kind:
            return _SCALARS.get(kind) or _list(key)


def _list(key: FileKey) -> dict[str, Any]:
    match key.kind:
        case "texts":
            return {"type": ["array", "null"], "items": _TEXT}
        case "networks" | "pod networks":
            return {"type": "array", "items": {"type": "string", "pattern": _NETWORK}, "minItems": 1}
        case "schemes":
            items: dict[str, Any] = {"type": "string", "pattern": SCHEME}
        case _:
            items = _mapping(key.keys)
    least = {"minItems": 1} if key.requires_one else {}
    return {"type": ["array", "null"], "items": items, **least}


def _fact() -> dict[str, Any]:
    known = [{"const": field.key, "description": _about(field)} for field in FIELDS if not field.is_map]
    entries = [
        {"pattern": f"^{field.key}\\..", "description": _about(field)} for field in FIELDS if field.is_map
    ]
    return {"type": "string", "examples": [each["const"] for each in known], "anyOf": [*known, *entries, {}]}


def _about(field: FactField) -> str:
    in_reference = field.in_reference == "selectors and templates"
    return field.help if in_reference else f"{field.help}. Not in selectors of the reference"


def _templates(key: FileKey) -> dict[str, Any]:
    values = dict(_TEXT_OR_NOTHING)
    if key.name == "taints":
        effects = "|".join(EFFECTS)
        values = {"type": "string", "pattern": f"{{{{|^([^:]*:)?({effects})$"}
    return {
        "type": ["object", "null"],
        "propertyNames": {"pattern": _QUALIFIED},
        "additionalProperties": values,
    }


def _overrides() -> dict[str, Any]:
    names = {
        field.name: {"description": field.help, **_TEXT_OR_NOTHING}
        for field in FIELDS
        if field.key in OVERRIDABLE
    }
    return {"type": ["object", "null"], "properties": names, "additionalProperties": _TEXT_OR_NOTHING}


def _if_operator(operator: str, then: dict[str, Any]) -> dict[str, Any]:
    return {"if": {"properties": {"operator": {"const": operator}}, "required": ["operator"]}, "then": then}


if __name__ == "__main__":
    sys.stdout.write(render_schema())
