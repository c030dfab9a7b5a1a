"""The parts of the chart's values.schema.json that name services and controllers."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from libs.common.contract.controllers import NEVER_HERE
from libs.common.contract.services import SERVICES

_OBJECT: Final[dict[str, Any]] = {"type": "object"}
_ALL_SERVICES: Final[dict[str, Any]] = {
    "extraArgs": {"type": "array", "items": {"type": "string"}},
    "resources": _OBJECT,
    "podAnnotations": _OBJECT,
    "nodeSelector": _OBJECT,
    "tolerations": {"type": "array", "items": _OBJECT},
    "affinity": _OBJECT,
}
_REPLICAS: Final[dict[str, Any]] = {"replicas": {"type": "integer", "minimum": 1}}


def render_values_schema(text: str) -> str:
    """Return the schema with the keys of `services` and the names in `enabledControllers`."""
    schema = json.loads(text)
    schema["properties"]["enabledControllers"]["items"]["pattern"] = _build_controller_pattern()
    schema["properties"]["services"]["properties"] = {
        spec.service: {
            "type": "object",
            "properties": _ALL_SERVICES if spec.single_replica else _REPLICAS | _ALL_SERVICES,
            "additionalProperties": False,
        }
        for spec in SERVICES
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _build_controller_pattern() -> str:
    return rf"^(\*|-?({'|'.join(_list_controller_names())}))$"


def _list_controller_names() -> Iterator[str]:
    controllers = [spec.controller for spec in SERVICES if spec.controller.name]
    for each in sorted(controllers, key=lambda controller: controller.display_name):
        others = [name for name in (each.name, *each.aliases) if name != each.display_name]
        yield _join_names(each.display_name, others)
    for name, alias in sorted(NEVER_HERE.items(), key=lambda names: names[1]):
        yield _join_names(alias, [name])


def _join_names(name: str, others: Sequence[str]) -> str:
    """Return the names as alternatives; name and name-controller share one."""
    return f"{name}(-controller)?" if list(others) == [f"{name}-controller"] else "|".join((name, *others))
