"""The metrics of libs/common/observability/metrics.py and the services that set them, from the sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from libs.common.contract.services import CLOUD, SERVICE_TABLE, SERVICES

ROOT: Final = Path(__file__).parents[1]
METRICS: Final = ROOT / "libs" / "common" / "observability" / "metrics.py"
_USE: Final = re.compile(r"\bmetrics\.(\w+)\b")
_SECTION: Final = re.compile(r"^# ---- (?P<title>[^:\n]+)")
# The constructor of a metric, and its Prometheus type.
_FACTORIES: Final = {
    "_counter": "counter",
    "_gauge": "gauge",
    "_histogram": "histogram",
    "StatusCounter": "unknown",
    "OptionalGauge": "gauge",
}
IN_EVERY_PROCESS: Final = re.compile(r"libs\.common\.service\.(?!config_reload)")
ALL_SERVICES: Final = tuple(wiring.service for wiring in SERVICES)
# A service without Kubernetes permissions sends no request to Kubernetes.
_WITH_PERMISSIONS: Final = tuple(wiring.service for wiring in SERVICE_TABLE if wiring.policy_rules)


class RegisteredMetric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric: its constant, and the arguments of its constructor."""

    constant: str
    section: str
    name: str
    type: str
    meaning: str
    labels: tuple[str, ...]
    arguments: tuple[str, ...]  # all values of its only label, if the constructor lists them
    is_optional: bool  # it has no series while its value is unknown


def list_registered_metrics() -> tuple[RegisteredMetric, ...]:
    """Return all metrics, in the order of the file."""
    text = METRICS.read_text()
    titles = {
        number: match["title"].strip()
        for number, line in enumerate(text.splitlines(), 1)
        if (match := _SECTION.match(line))
    }
    return tuple(_parse_metrics(ast.parse(text), titles))


def list_services(constant: str) -> tuple[str, ...]:
    """Return the services that set the metric, in their own code or in an imported part of libs/common."""
    setters = list_setters(constant)
    if any(IN_EVERY_PROCESS.match(module) for module in setters):
        return _WITH_PERMISSIONS if constant.startswith("KUBE_") else ALL_SERVICES
    users = setters.union(*map(list_importers, setters))
    found = {module.split(".")[1] for module in users if module.startswith("services.")}
    return tuple(name for name in (*ALL_SERVICES, CLOUD.service, "bootstrap") if name in found)


def list_setters(constant: str) -> frozenset[str]:
    """Return the modules that use that constant."""
    return frozenset(module for module, used in _read_uses().items() if constant in used)


@cache
def _read_uses() -> dict[str, frozenset[str]]:
    """Return the constants that each module uses."""
    return {module: frozenset(_USE.findall(text)) for module, text in read_modules().items()}


@cache
def list_importers(imported: str) -> frozenset[str]:
    """Return the modules that import from that module."""
    return frozenset(module for module, text in read_modules().items() if f"from {imported} import" in text)


def _parse_metrics(tree: ast.Module, titles: dict[int, str]) -> Iterator[RegisteredMetric]:
    for statement in tree.body:
        match statement:
            case ast.AnnAssign(
                target=ast.Name(id=constant), value=ast.Call(func=ast.Name(id=maker), args=arguments)
            ) if maker in _FACTORIES:
                name, meaning, *words = (ast.literal_eval(argument) for argument in arguments)
                by_status = maker == "StatusCounter"
                yield RegisteredMetric(
                    constant=constant,
                    section=[title for line, title in titles.items() if line < statement.lineno][-1],
                    name=name,
                    type=_FACTORIES[maker],
                    meaning=meaning,
                    labels=("status",) if by_status else tuple(words),
                    arguments=tuple(words) if by_status else (),
                    is_optional=maker == "OptionalGauge",
                )


@cache
def read_modules() -> dict[str, str]:
    """Return the source of each module that is installed in a cluster, by its name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text()
        for folder in ("libs/common", "libs/talos", "services")
        for path in (ROOT / folder).rglob("*.py")
        if path != METRICS
    }
