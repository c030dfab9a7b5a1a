"""Pages of services name all that these have, and docs/metrics.md is what the code says."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pytest

from cli.explain.csr.output import _AFTER_A_DENIAL, _ENDS_A_WAIT
from libs.common.bus.consumer_middleware import _OUTCOMES
from libs.common.cloud_config.document import parse_cloud_config
from libs.common.cloud_config.file_keys import POOL
from libs.common.cloud_config.model import Ownership
from libs.common.contract.controllers import CSR_APPROVAL, NODE_LIFECYCLE
from libs.common.observability import metrics
from libs.common.settings.flags import LIFECYCLE, POD_CIDRS, SERVICE_NETWORKS
from libs.common.settings.read_settings import list_options
from services.csr.core.request_checks import PASSED_TEXTS
from services.csr.settings import CsrSettings
from services.ipam.core.pools import NODE_SUBNET_POOL
from services.ipam.reports import CONFLICT, NOT_AVAILABLE, OTHER_ALLOCATOR
from services.ipam.settings import IpamSettings
from services.labeler.on_node_enriched import TRANSFORMER_TYPE
from services.lifecycle import node_deleter
from services.lifecycle.core.decide import INSTANCE_GONE, REPLACED, SPOT
from services.lifecycle.settings import LifecycleSettings
from tests.architecture.sources import ROOT, list_tracked_files, sources
from tests.tables import naming
from tests.unit.cli.explain.node.test_node import explained, shown
from tools.metrics_page import OF_THE_REFERENCE, PAGE, describe_label_values, render_metrics_page
from tools.registered_metrics import (
    RegisteredMetric,
    list_registered_metrics,
    list_series,
    list_services,
    read_modules,
)

NAMERS: Final[dict[str, str | int]] = {
    "Check": "name",
    "make_undecided": 0,
    "_check_rivals": 1,
}  # where each has a check's name


def read(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text()


def section(page: str, heading: str) -> str:
    return read(page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def named(text: str) -> list[str]:
    """What stands in the first column of its tables."""
    return re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)


class Page(NamedTuple):
    """What a page names."""

    settings: type[Any]
    flags: str  # of these groups, or with this beginning
    metrics: str
    events: tuple[str, ...]


PAGES: Final = {
    "certificates": Page(CsrSettings, r"csr-", "talosccm_csr_", ()),
    "ipam": Page(
        IpamSettings,
        "|".join((POD_CIDRS, SERVICE_NETWORKS)),
        "talosccm_ipam_|node_ipam_controller_",
        (NOT_AVAILABLE, OTHER_ALLOCATOR, CONFLICT, "PoolsRejected"),
    ),
    "lifecycle": Page(
        LifecycleSettings,
        LIFECYCLE,
        "talosccm_lifecycle_",
        (node_deleter.DELETING, node_deleter.FAILED, node_deleter.WOULD_DELETE),
    ),
}
# A part of these names stands for the second of two that share a row.
SHARE_A_ROW: Final = {
    "node_ipam_controller_cidrset_cidrs_releases",
    "--node-cidr-mask-size-ipv6",
    "--ipam-in-flight",
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_every_flag_metric_and_event_of_its_service(page: str):
    own, text = PAGES[page], read(page)
    names = [
        f"--{option.flag.name}"
        for option in list_options(own.settings)
        if re.match(own.flags, option.flag.name) or option.flag.group in own.flags.split("|")
    ]
    names += [each.name for each in metrics.REGISTRY.collect() if re.match(own.metrics, each.name)]
    names += own.events
    assert len(names) > 5
    assert [name for name in names if name not in text and name not in SHARE_A_ROW] == []


def test_a_metric_that_a_page_names_exists():
    ours = {*list_series(), *(metric.name for metric in list_registered_metrics())}
    for file in list_tracked_files():
        if file.startswith("docs/") and file.endswith(".md"):
            assert set(re.findall(r"`(talosccm_\w+)[`{]", (ROOT / file).read_text())) <= ours, file


def checks_in(*modules: str) -> Iterator[str]:
    """Every name that this code gives a check."""
    for source in sources("services/csr"):
        if source.module.removeprefix("services.csr.core.") not in modules:
            continue
        for node in source.nodes:
            place = NAMERS.get(getattr(node.func, "id", "")) if isinstance(node, ast.Call) else None
            if not isinstance(node, ast.Call) or place is None:
                continue
            found = {keyword.arg: keyword.value for keyword in node.keywords}
            value = found.get(place) if isinstance(place, str) else node.args[place]
            if isinstance(value, ast.Constant):
                yield str(value.value)


def _waits_of_judge() -> set[str]:
    """Reasons of waits that concern what csr itself knows, but for the budget's, which no operator ends."""
    modules = ("services.csr.core.evaluation", "services.csr.core.metadata_reports")
    nodes = (node for each in sources("services/csr") if each.module in modules for node in each.nodes)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    waits = (call for call in calls if getattr(call.func, "id", "") == "Wait")
    reasons = [word.value for call in waits for word in call.keywords if word.arg == "reason"]
    return {str(each.value) for each in reasons if isinstance(each, ast.Constant)} - {"node"}


def test_the_tables_name_each_check_of_the_code_and_no_other():
    of_request, by_machine = section("certificates", "What is checked").split("By the machine", maxsplit=1)
    assert named(of_request) == ["requester", *PASSED_TEXTS]
    assert set(checks_in("decide")) == {"requester", "request"}
    reserved = set(checks_in("endpoint_checks"))
    assert set(named(by_machine)) == {*checks_in("attestation"), *reserved, *_waits_of_judge()}
    by_node_object = {*checks_in("node_object_checks"), "pod-cidrs"}  # attestation.py names the last one
    assert set(named(section("certificates", "Without Talos"))) == {*by_node_object, *reserved}


def test_whatever_is_waited_for_has_an_advice_and_no_advice_is_for_nothing():
    waits = {*checks_in("attestation"), *checks_in("node_object_checks"), *checks_in("endpoint_checks")}
    assert set(_ENDS_A_WAIT) == waits
    assert set(_AFTER_A_DENIAL) <= {*waits, *PASSED_TEXTS}


def test_the_example_of_pools_is_a_good_file_in_which_every_pool_is_used():
    (example,) = re.findall(r"```yaml\n(.*?)```", section("ipam", "Pools"), re.DOTALL)
    config = parse_cloud_config(example, "f")
    assert [pool.name for pool in config.pools] == ["metal", "rest"]
    assert config.warnings == ()
    rows = re.findall(r"^\| (`.*?) \|", section("ipam", "Pools"), re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(rows)) == [key.name for key in POOL]


def test_the_examples_of_lifecycle_are_what_explain_says():
    replaced, silent = re.findall(r"```text\n(.*?)```", section("lifecycle", "What you see"), re.DOTALL)
    assert replaced in shown(explained("replaced"))
    assert silent in shown(explained("shut-down"))


def test_the_example_of_lifecycle_beside_another_controller_is_a_file_without_mistakes():
    page = section("lifecycle", "Beside another cloud controller manager")
    ownership = parse_cloud_config(page.partition("```yaml\n")[2].partition("```")[0], "f").ownership
    assert ownership.default.provider_id_schemes == ("talos",)
    assert ownership.for_controller(CSR_APPROVAL) == Ownership()
    assert ownership.for_controller(NODE_LIFECYCLE).provider_id_schemes == ()
    assert len(ownership.for_controller(NODE_LIFECYCLE).selector) == 1


# ---- metrics


BY_CONSTANT = {metric.constant: metric for metric in list_registered_metrics()}
OTHERS = ("process_", "python_")
ONLY_WORDS = re.compile(r"`[\w-]+`(, `[\w-]+`)*")


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


def test_the_page_has_every_metric_of_the_registry():
    there = {each.name for each in metrics.REGISTRY.collect() if not each.name.startswith(OTHERS)}
    assert there == {metric.name.removesuffix("_total") for metric in list_registered_metrics()}


def test_a_row_has_the_words_and_services_of_its_metric():
    for metric in list_registered_metrics():
        with naming(metric.name):
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
        ("LIFECYCLE_DELETIONS", "evidence", {REPLACED, INSTANCE_GONE, SPOT}),
        ("IPAM_ALLOCATIONS", "clusterCIDR", {NODE_SUBNET_POOL}),
        ("IPAM_RELEASES", "clusterCIDR", {NODE_SUBNET_POOL}),
    ],
)
def test_words_that_stand_in_constants_are_on_the_page(constant: str, label: str, words: set[str]):
    assert set(re.findall(r"`([\w-]+)`", describe_label_values(BY_CONSTANT[constant], label))) == words


def test_the_reference_s_metrics_are_all_there_with_their_labels():
    ours = {metric.name: metric.labels for metric in list_registered_metrics()}
    assert {name: ours.get(name) for name in OF_THE_REFERENCE} == OF_THE_REFERENCE
