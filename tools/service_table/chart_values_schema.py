"""The parts of the chart's values.schema.json that name services and controllers."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from libs.common.contract.controllers import NEVER_HERE
from libs.common.contract.services import SERVICES

# Values of a single service that have the form of the common value of the same name.
_OWN_VALUES: Final = (
    "extraArgs",
    "resources",
    "podAnnotations",
    "podLabels",
    "nodeSelector",
    "tolerations",
    "affinity",
    "topologySpreadConstraints",
)
_REPLICAS: Final[dict[str, Any]] = {"replicas": {"type": "integer", "minimum": 1}}


def render_values_schema(text: str) -> str:
    """Return the schema with the keys of `services`, the names in `enabledControllers`, and misspelt keys."""
    schema = json.loads(text)
    values = schema["properties"]
    values["enabledControllers"]["items"]["pattern"] = _build_controller_pattern()
    own = {name: values[name] for name in _OWN_VALUES}
    values["services"]["properties"] = {
        spec.service: {
            "type": "object",
            "properties": own if spec.single_replica else _REPLICAS | own,
            "additionalProperties": False,
        }
        for spec in SERVICES
    }
    # Other unknown keys stay allowed: anchors, or `enabled` of a parent chart.
    misspelt = {"not": {"pattern": f"^({'|'.join(map(_build_misspelt_pattern, values))})$"}}
    schema["propertyNames"] = {"anyOf": [{"enum": list(values)}, misspelt]}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _build_misspelt_pattern(name: str) -> str:
    """Return a pattern of the name in another case, or with one character missing, replaced or added."""
    lower = "".join(f"[{letter}{letter.swapcase()}]" for letter in name)
    return "|".join(
        (lower, *(f"{name[:at]}.?{name[at + more :]}" for more in (0, 1) for at in range(len(name))))
    )


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
