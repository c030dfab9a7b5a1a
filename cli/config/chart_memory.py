"""Finds memory limits in the chart's values that are lower than what the services need. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cli.config.chart_schema import make_finding
from libs.common.cloud_config.findings import truncate_line
from libs.common.cloud_config.model import Finding
from libs.common.contract.services import ALL_IN_ONE_PEAK_MEBIBYTES, SERVICES

_QUANTITY: Final = re.compile(
    r"\+?(\d{1,20}\.?\d{0,20}|\.\d{1,20})([KMGTPE]i|[mkMGTPE]|[eE][+-]?\d{1,2})?", re.ASCII
)
_DECIMAL: Final = {"": 1.0, "m": 1e-3, **{unit: 1000.0**power for power, unit in enumerate("kMGTPE", 1)}}
_BINARY: Final = {f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", 1)}
_PEAKS: Final = {spec.service: spec.peak_mebibytes for spec in SERVICES}


def find_low_limits(
    values: Mapping[str, Any], services: Sequence[str], *, one_process: bool
) -> Iterator[Finding]:
    """Yield a warning for each limit below a measured peak.

    Services without resources of their own inherit the common ones.
    """
    if one_process:
        yield from _check_limit(
            "resources", values.get("resources"), {"one process": ALL_IN_ONE_PEAK_MEBIBYTES}
        )
        return
    settings = values.get("services")
    own = {name: _get(_get(settings, name), "resources") for name in services}
    common = {name: _PEAKS[name] for name in services if not own[name]}
    yield from _check_limit("resources", values.get("resources"), common)
    for name, resources in own.items():
        yield from _check_limit(f"services.{name}.resources", resources, {name: _PEAKS[name]})


def parse_mebibytes(quantity: Any) -> float | None:
    """Return a Kubernetes quantity of bytes in MiB; None for an invalid one, which Kubernetes rejects."""
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None or isinstance(quantity, bool):
        return None
    number, unit = float(match[1]), match[2] or ""
    factor = _DECIMAL.get(unit) or _BINARY.get(unit) or float(f"1{unit}")
    return number * factor / 2**20


def _check_limit(path: str, resources: Any, peaks: Mapping[str, int]) -> Iterator[Finding]:
    limit = _get(_get(resources, "limits"), "memory")
    mebibytes = parse_mebibytes(limit)
    if mebibytes is None:
        return
    higher = [f"{peak} MiB ({name})" for name, peak in peaks.items() if peak > mebibytes]
    if higher:
        text = f"{truncate_line(str(limit))} is less than the peak of 1000 joining nodes: {', '.join(higher)}"
        yield make_finding(f"{path}.limits.memory", f"{text}. The kernel may kill the process")


def _get(parent: Any, key: str) -> Any:
    return parent.get(key) if isinstance(parent, dict) else None
