"""Names, types, labels, buckets and label values of all metrics: dashboards and alerts read them."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final, cast

from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from libs.common.bus import protocol as bus
from libs.common.contract.services import SERVICES
from libs.common.contract.subjects import subject_of
from libs.common.kube import errors, watch_events
from libs.common.observability import metrics
from libs.common.observability.logs import log_fields
from libs.common.service.observers import bus_hooks, observe_kubernetes
from services.ipam.pool_selection import NODE_SUBNET_POOL
from services.lifecycle.decide import REPLACED, SPOT
from services.watcher.informer import Informer
from services.watcher.kinds import CSR, NODE
from tests.architecture.sources import sources
from tests.builders import NOW
from tests.contract.interface_snapshot import assert_unchanged
from tests.contract.observed_run import every_event, messages_of_every_event, run_handlers
from tests.contract.static_values import ModuleText
from tools.metrics_page import list_talos_requests

_SETTERS: Final = ("labels", "inc", "set_series")
_OF_PYTHON: Final = (ProcessCollector, PlatformCollector)
_PROCESS: Final = ("process_", "python_")  # of prometheus_client
# Gauges that change by themselves once another test has started a service.
_BY_CLOCK: Final = ("talosccm_leader_silence_seconds", "talosccm_watch_last_heard_timestamp_seconds")


def test_metric_names_types_labels_and_buckets_are_unchanged():
    found = {}
    for collector in registered():
        families = [] if isinstance(collector, _OF_PYTHON) else cast("Any", collector).describe()
        for family in families:
            name = family.name + ("_total" if family.type == "counter" else "")
            found[name] = {"type": family.type, "labels": list(labels_of(collector))}
            if family.type == "histogram":
                found[name]["buckets"] = [str(each) for each in cast("Any", collector)._upper_bounds]
    assert_unchanged("metrics", found)


def test_metrics_of_the_python_process_are_unchanged():
    names = {sample.name for family in metrics.REGISTRY.collect() for sample in family.samples}
    assert_unchanged("metrics_of_python", sorted(name for name in names if name.startswith(_PROCESS)))


def test_label_values_that_the_source_lists_are_unchanged():
    found: dict[str, set[str]] = defaultdict(set)
    for name, values in label_constants():
        found[name] |= values
    found["request"] = set(list_talos_requests())
    found["durable"] = {durable.name for wiring in SERVICES for durable in wiring.durables}
    found["service"] = {wiring.service for wiring in SERVICES}
    found["resource"] = {NODE.resource, CSR.resource}
    found["clusterCIDR"] = {NODE_SUBNET_POOL}
    found["evidence"] = {REPLACED, SPOT}
    listed = {name: sorted(values) for name, values in found.items() if values}
    assert_unchanged("metric_labels_in_source", listed)


async def test_label_values_of_handled_messages_are_unchanged():
    before = samples()
    for kind in ("node", "csr"):
        await run_handlers("labeler", kind, messages_of_every_event())
    assert_unchanged("metric_labels_of_messages", counted_since(before))


def test_label_values_of_published_messages_are_unchanged():
    before = samples()
    hooks = bus_hooks(["labeler"])
    for event in every_event():
        hooks.published(subject_of(event))
        for kind in (bus.BusError, *bus.BusError.__subclasses__()):
            hooks.publish_failed(subject_of(event), error_of(kind))
    assert_unchanged("metric_labels_of_publishing", counted_since(before))


def test_reasons_of_watch_restarts_are_unchanged():
    before, on_trouble = samples(), []

    def source(_: Any, reports: Any) -> Any:
        on_trouble.append(reports)

    Informer(
        NODE,
        source,
        cast("Any", None),
        now=lambda: NOW,
        has_later=lambda listed: False,
        on_rewound=lambda: None,
        on_changed_names=lambda names: None,
    )
    for kind in (*subclasses(errors.KubeError), watch_events.ListAgain):
        on_trouble[0](error_of(kind))
    assert_unchanged("metric_labels_of_watch_restarts", counted_since(before))


def test_verbs_and_resources_of_kubernetes_requests_are_unchanged():
    before, requests = samples(), set()
    for source in sources("libs/common/kube"):
        text = ModuleText(source)
        for call in text.calls:
            named = {keyword.arg: keyword.value for keyword in call.keywords}
            if {"verb", "resource", "path"} <= named.keys():
                plurals = list(text.strings(named["resource"])) or [NODE.resource, CSR.resource]
                requests |= {(verb, each) for verb in text.strings(named["verb"]) for each in plurals}
    with log_fields(service="labeler"):
        for verb, resource in requests:
            for status in (0, 200, 409):
                observe_kubernetes(verb, resource, status, 0.1)
    assert_unchanged("metric_labels_of_kubernetes_requests", counted_since(before))


def test_reasons_of_waiting_certificate_requests_are_unchanged():
    found: set[str] = set()
    for source in sources("services/csr"):
        text = ModuleText(source)
        for call in text.calls:
            named = {keyword.arg: keyword.value for keyword in call.keywords}
            if {"name", "passed", "text"} <= named.keys():
                found.update(text.strings(named["name"]))
            if {"reason", "message", "nodes"} <= named.keys():
                found.update(text.strings(named["reason"]))
    assert_unchanged("metric_labels_of_waiting_requests", sorted(found))


def registered() -> list[Collector]:
    """Everything that is registered, by us or by prometheus_client."""
    return list(cast("Any", metrics.REGISTRY)._collector_to_names)


def labels_of(collector: Collector) -> tuple[str, ...]:
    """The names of its labels; a counter of statuses has them in its series."""
    if hasattr(collector, "_labelnames"):
        return tuple(collector._labelnames)
    return tuple({label: "" for family in collector.collect() for s in family.samples for label in s.labels})


def label_constants() -> Iterator[tuple[str, set[str]]]:
    """Metrics, and the string constants that the source passes as label values."""
    names = {
        constant: family.name
        for constant, value in vars(metrics).items()
        if hasattr(value, "describe")
        and hasattr(value, "collect")
        and not isinstance(value, type | CollectorRegistry)
        for family in value.describe()
    }
    for source in sources("libs/common", "libs/talos", "services"):
        text = ModuleText(source)
        for call in text.calls:
            match call.func:
                case ast.Attribute(value=ast.Attribute(attr=constant), attr=method) if (
                    constant in names and method in _SETTERS
                ):
                    yield names[constant], set(strings_in(text, call))


def strings_in(text: ModuleText, call: ast.Call) -> Iterator[str]:
    for argument in call.args:
        yield from text.strings(argument)
        for node in ast.walk(argument) if isinstance(argument, ast.Dict) else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def samples() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every series with its value, buckets and sums left out."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in metrics.REGISTRY.collect()
        for sample in family.samples
        if "le" not in sample.labels and not sample.name.endswith("_sum")
    }


def counted_since(before: dict[Any, float]) -> dict[str, dict[str, list[str]]]:
    """The label values of the series that have increased, by metric and label."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for (name, labels), value in samples().items():
        if value > before.get((name, labels), 0.0) and not name.startswith(_PROCESS + _BY_CLOCK):
            for label, text in labels:
                found[name][label].add(text)
    return {name: {label: sorted(texts) for label, texts in by.items()} for name, by in found.items()}


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def error_of(kind: Any) -> Any:
    """An instance, whatever its constructor wants."""
    return BaseException.__new__(kind)
