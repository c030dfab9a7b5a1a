"""The errors of a service since its process began, as the metrics of the process count them."""

from collections.abc import Mapping
from typing import Final

from libs.common.contract.services import CLOUD, METADATA, ServiceSpec
from libs.common.contract.subjects import ROOT
from libs.common.observability.metrics import (
    CLOUD_REQUESTS,
    DEAD_LETTERS,
    HANDLED,
    KUBE_REQUESTS,
    PUBLISHED,
    TALOS_REQUEST_ERRORS,
    sum_counter,
)

# 404: the object is gone; 409, and 422 for a fence in a patch: another writer was faster; 410: a watch starts
# again. Each is normal. What the API server refuses as invalid is a retried message, too.
_NORMAL_STATUS: Final = frozenset({"404", "409", "410", "422"})
_FAILED_PUBLISHES: Final = frozenset({"failed", "stream_full"})
_NORMAL_OUTCOMES: Final = frozenset({"found", "not_found", "held_back"})


def count_errors(spec: ServiceSpec) -> dict[str, int]:
    """Return cause -> number of errors, in words for an operator; a cause without errors is left out."""
    name = spec.service
    stems = tuple(f"{subject.removeprefix(f'{ROOT}.').removesuffix('.>')}." for subject in spec.publishes)
    counts = {
        "retried messages": sum_counter(
            HANDLED, lambda labels: labels["service"] == name and labels["outcome"] == "retried"
        ),
        "dead letters": sum_counter(DEAD_LETTERS, lambda labels: labels["service"] == name),
        "failed publishes": sum_counter(
            PUBLISHED,
            lambda labels: labels["outcome"] in _FAILED_PUBLISHES and f"{labels['event']}.".startswith(stems),
        ),
        "failed Kubernetes requests": sum_counter(
            KUBE_REQUESTS, lambda labels: labels["service"] == name and _is_failed(labels["status"])
        ),
        "failed Talos calls": sum_counter(TALOS_REQUEST_ERRORS, lambda labels: name == METADATA.service),
        "failed cloud requests": sum_counter(CLOUD_REQUESTS, lambda labels: _is_failed_query(name, labels)),
    }
    return {cause: count for cause, count in counts.items() if count}


def _is_failed(status: str) -> bool:
    return not status.startswith("2") and status not in _NORMAL_STATUS


def _is_failed_query(service: str, labels: Mapping[str, str]) -> bool:
    return service == f"{CLOUD.service}-{labels['account']}" and labels["outcome"] not in _NORMAL_OUTCOMES
