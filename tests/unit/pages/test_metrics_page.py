"""docs/metrics.md is what the code says, all of it, and the reference's metrics are there."""

import ast
import re
from collections.abc import Iterator

import pytest

from libs.common.bus.consumer_middleware import _OUTCOMES
from libs.common.observability import metrics
from services.ipam.core.pools import NODE_SUBNET_POOL
from services.labeler.on_node_enriched import TRANSFORMER_TYPE
from services.lifecycle.core.decide import REPLACED, SPOT
from tests.tables import naming
from tools.metrics_page import OF_THE_REFERENCE, PAGE, describe_label_values, render_metrics_page
from tools.registered_metrics import (
    RegisteredMetric,
    list_registered_metrics,
    list_services,
    read_modules,
)

BY_CONSTANT = {metric.constant: metric for metric in list_registered_metrics()}
OTHERS = ("process_", "python_")
ONLY_WORDS = re.compile(r"`[\w-]+`(, `[\w-]+`)*")
# As the reference's own code and k8s.io/cloud-provider register them.
LABELS_OF_THE_REFERENCE = {
    "talosccm_api_request_duration_seconds": ("request",),
    "talosccm_api_request_errors_total": ("request",),
    "talosccm_transformer_duration_seconds": ("type",),
    "talosccm_transformer_errors_total": ("type",),
    "talosccm_csr_approval_count": ("status",),
    "node_controller_cloud_provider_taint_removal_delay_seconds": (),
    "node_controller_initial_node_sync_delay_seconds": (),
    "node_ipam_controller_cidrset_cidrs_allocations_total": ("clusterCIDR",),
    "node_ipam_controller_cidrset_cidrs_releases_total": ("clusterCIDR",),
    "node_ipam_controller_cirdset_max_cidrs": ("clusterCIDR",),
    "node_ipam_controller_cidrset_usage_cidrs": ("clusterCIDR",),
    "node_ipam_controller_cidrset_allocation_tries_per_request": ("clusterCIDR",),
}


def said_in_code() -> Iterator[tuple[RegisteredMetric, str, str]]:
    """Metric, label and word of each `metrics.NAME.labels("word")` and `metrics.NAME.inc("word")`."""
    for text in read_modules().values():
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(
                    func=ast.Attribute(
                        value=ast.Attribute(value=ast.Name(id="metrics"), attr=constant),
                        attr="labels" | "inc",
                    ),
                    args=arguments,
                ):
                    metric = BY_CONSTANT[constant]
                    for label, argument in zip(metric.labels, arguments, strict=False):
                        branches = (
                            (argument.body, argument.orelse)
                            if isinstance(argument, ast.IfExp)
                            else (argument,)
                        )
                        yield from (
                            (metric, label, each.value)
                            for each in branches
                            if isinstance(each, ast.Constant) and isinstance(each.value, str)
                        )


def test_the_page_is_what_make_metrics_page_writes():
    assert PAGE.read_text() == render_metrics_page(), "stale: `make metrics-page`"


def test_an_unlabelled_metric_is_shown_by_whoever_imports_the_registry():
    """As the page says; these processes would have no such series else."""
    shown = metrics.exposition("")[0].decode()
    for metric in list_registered_metrics():
        if not metric.labels and metric.type == "gauge":
            assert (f"\n{metric.name} " in shown) is not metric.is_optional


def test_the_page_has_every_metric_of_the_registry_and_no_other():
    there = {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in metrics.REGISTRY.collect()
        if not family.name.startswith(OTHERS)
    }
    rows = re.findall(r"^\| `(\w+)`(?: \*\*\\\*\*\*)? \| (\w+) \|", render_metrics_page(), re.MULTILINE)
    assert dict(rows) == there
    assert len(rows) == len(there)


def test_a_row_has_the_labels_words_and_services_of_its_metric():
    for metric in list_registered_metrics():
        with naming(metric.name):
            live = getattr(metrics, metric.constant)
            assert metric.labels == getattr(live, "_labelnames", ("status",))
            assert metric.meaning.endswith(".")
            assert list_services(metric.constant), "no service sets it"
            for label in metric.labels:
                values = describe_label_values(metric, label)
                if ONLY_WORDS.fullmatch(values):
                    for word in re.findall(r"[\w-]+", values):
                        assert any(f'"{word}"' in text for text in read_modules().values()), (
                            f"nothing says {word}"
                        )


def test_every_word_that_the_code_gives_a_label_is_on_the_page():
    said = list(said_in_code())
    assert {"deny", "skipped", "would-delete", "removed"} <= {word for _, _, word in said}
    for metric, label, word in said:
        assert f"`{word}`" in describe_label_values(metric, label), f"{metric.name}{{{label}}}"


@pytest.mark.parametrize(
    ("constant", "label", "words"),
    [
        ("HANDLED", "outcome", set(_OUTCOMES.values())),
        ("TRANSFORMER_DURATION", "type", {TRANSFORMER_TYPE}),
        ("TRANSFORMER_ERRORS", "type", {TRANSFORMER_TYPE}),
        ("LIFECYCLE_DELETIONS", "evidence", {REPLACED, SPOT}),
        ("IPAM_ALLOCATIONS", "clusterCIDR", {NODE_SUBNET_POOL}),
        ("IPAM_RELEASES", "clusterCIDR", {NODE_SUBNET_POOL}),
    ],
)
def test_words_that_stand_in_constants_are_on_the_page(constant: str, label: str, words: set[str]):
    assert set(re.findall(r"`([\w-]+)`", describe_label_values(BY_CONSTANT[constant], label))) == words


def test_the_reference_s_metrics_are_all_there_with_their_labels_and_marked():
    ours = {
        metric.name: metric.labels for metric in list_registered_metrics() if metric.name in OF_THE_REFERENCE
    }
    assert ours == LABELS_OF_THE_REFERENCE
    marked = re.findall(r"^\| `(\w+)` \*\*\\\*\*\*", render_metrics_page(), re.MULTILINE)
    assert sorted(marked) == sorted(LABELS_OF_THE_REFERENCE)


def test_the_transformer_metrics_have_the_type_of_the_reference_s_code():
    """Its docs say otherwise. The import of the labeler makes the series."""
    shown = metrics.exposition("")[0].decode()
    series = set(
        re.findall(r'^talosccm_transformer_\w+_(?:count|total)\{type="(\w+)"\}', shown, re.MULTILINE)
    )
    assert series == {"transformer"}
