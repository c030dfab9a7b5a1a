"""The metrics of libs/common/observability/metrics.py, and from the sources the services that set them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from libs.common.contract.services import CLOUD, SERVICE_TABLE, SERVICES
from libs.common.observability import metrics

ROOT: Final = Path(__file__).parents[1]
METRICS: Final = ROOT / "libs" / "common" / "observability" / "metrics.py"
_USE: Final = re.compile(r"\bmetrics\.(\w+)\b")
_SECTION: Final = re.compile(r"^# ---- (?P<title>[^:\n]+)")
IN_EVERY_PROCESS: Final = re.compile(r"libs\.common\.service\.(?!config_reload)")
ALL_SERVICES: Final = tuple(wiring.service for wiring in SERVICES)
# A service without Kubernetes permissions sends no request to Kubernetes.
_WITH_PERMISSIONS: Final = tuple(wiring.service for wiring in SERVICE_TABLE if wiring.policy_rules)


class RegisteredMetric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric, by the name of its constant."""

    constant: str
    section: str
    name: str
    type: str
    meaning: str
    labels: tuple[str, ...]
    is_optional: bool  # it has no series while its value is unknown

    @property
    def series(self) -> dict[str, set[str]]:
        """The names under which Prometheus has it, with their labels."""
        labels = set(self.labels)
        if self.type != "histogram":
            return {self.name: labels}
        return {f"{self.name}_bucket": {*labels, "le"}} | {
            f"{self.name}_{part}": labels for part in ("count", "sum")
        }


@cache
def list_registered_metrics() -> tuple[RegisteredMetric, ...]:
    """Return all metrics, in the order of the file."""
    return tuple(_read_metrics())


def list_series() -> dict[str, set[str]]:
    """Return the names under which Prometheus has our metrics, with their labels."""
    return {name: labels for metric in list_registered_metrics() for name, labels in metric.series.items()}


def _read_metrics() -> Iterator[RegisteredMetric]:
    section = ""
    for line in METRICS.read_text().splitlines():
        if match := _SECTION.match(line):
            section = match["title"].strip()
        constant = line.partition(":")[0]
        metric: Any = getattr(metrics, constant, None)
        if hasattr(metric, "_labelnames"):
            (family,) = metric.describe()
            yield RegisteredMetric(
                constant=constant,
                section=section,
                name=family.name + ("_total" if family.type == "counter" else ""),
                type=family.type,
                meaning=family.documentation,
                labels=tuple(metric._labelnames),  # noqa: SLF001 - prometheus_client has no other name for them
                is_optional=isinstance(metric, metrics.OptionalGauge),
            )


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


@cache
def read_modules() -> dict[str, str]:
    """Return the source of each module that is installed in a cluster, by its name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text()
        for folder in ("libs/common", "libs/talos", "services")
        for path in (ROOT / folder).rglob("*.py")
        if path != METRICS
    }
