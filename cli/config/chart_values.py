"""Checks values files of the chart, HelmReleases of Flux and Applications of Argo CD. Pure."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import yaml

from cli.config import chart_checks
from cli.config.chart_flags import ChartValues, check_flags
from cli.config.chart_schema import CHART, check_schema, find_value, make_finding
from cli.config.config_check import FileReport, check_config
from libs.common.cloud_config.findings import truncate_line
from libs.common.cloud_config.model import Finding
from libs.common.contract.controllers import find_controller_mistakes
from libs.common.safe_yaml import YamlError, read_yaml, read_yaml_documents

_CHART: Final = "talos-cloud-controller-manager"
_SECTIONS: Final = CHART["schema"]["properties"]["config"]["properties"]  # of the --cloud-config file
_SECTION_END: Final = re.compile(r"[.\[]")
_EXPECTED: Final = "give a values file, a HelmRelease of Flux or an Application of Argo CD"


class ValuesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one release; with `mistakes`, they cannot be checked."""

    owner: str = ""  # such as "HelmRelease kube-system/ccm"; "" for a plain values file
    values: dict[str, Any] = {}
    mistakes: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    other_sources: tuple[str, ...] = ()  # sources of values that are not in this file
    is_other_object: bool = False  # an object without values of this chart


def find_values(text: bytes) -> list[ValuesDocument]:
    """Return the values of every document of the file, at least one.

    Beside a release, objects of other kinds are left out: its source and namespace are often in the file.
    """
    try:
        documents = [each for each in read_yaml_documents(text) if each is not None] or [{}]
    except YamlError as error:
        return [ValuesDocument(mistakes=(Finding(line=error.line, problem=error.problem),))]
    found = [each for document in documents for each in _read_document(document)]
    if any(each.owner and not each.is_other_object for each in found):
        found = [each for each in found if not each.is_other_object]
    plain = [each for each in found if not each.owner and not each.mistakes]
    for each in plain[1:]:
        note = Finding(problem="a further document has no effect: Helm reads only the first one")
        found[found.index(each)] = msgspec.structs.replace(each, warnings=(note,))
    return found


def _read_document(document: Any) -> Iterator[ValuesDocument]:
    if not isinstance(document, dict):
        yield ValuesDocument(mistakes=(Finding(problem="is not a mapping of values"),))
        return
    kind, version = document.get("kind"), document.get("apiVersion")
    if not (isinstance(kind, str) and isinstance(version, str)):
        yield ValuesDocument(values=document)
        return
    parts = (find_value(document, f"metadata.{key}") for key in ("namespace", "name"))
    name = "/".join(str(part) for part in parts if part)
    owner = truncate_line(f"{kind} {name}".strip())
    match kind, version.partition("/")[0]:
        case "HelmRelease", "helm.toolkit.fluxcd.io":
            yield _read_helm_release(owner, document)
        case "Application", "argoproj.io":
            listed = find_value(document, "spec.sources")
            sources = listed if isinstance(listed, list) and listed else [find_value(document, "spec.source")]
            helm_sources = [each for each in sources if isinstance(each, dict) and _is_helm(each)]
            for source in helm_sources or [{}]:
                yield _read_argo_source(owner, source)
        case _:
            yield _refuse(owner, f"is no source of values: {_EXPECTED}")


def _read_helm_release(owner: str, document: dict[str, Any]) -> ValuesDocument:
    if other := _name_other_chart(find_value(document, "spec.chart.spec.chart")):
        return _refuse(owner, f"installs the chart {other}, not {_CHART}")
    others = ("the values of valuesFrom",) if find_value(document, "spec.valuesFrom") else ()
    return _read_values(owner, "spec.values", find_value(document, "spec.values"), others)


def _read_argo_source(owner: str, source: dict[str, Any]) -> ValuesDocument:
    if other := _name_other_chart(source.get("chart")):
        return _refuse(owner, f"installs the chart {other}, not {_CHART}")
    keys = [f"helm.{key}" for key in ("valueFiles", "parameters", "fileParameters")]
    others = tuple(f"the values of {key}" for key in keys if find_value(source, key))
    text, values = find_value(source, "helm.values"), find_value(source, "helm.valuesObject")
    if values is not None:
        found = _read_values(owner, "helm.valuesObject", values, others)
        note = make_finding("helm.values", "has no effect: helm.valuesObject replaces it")
        return msgspec.structs.replace(found, warnings=(note,) if text else ())
    if not isinstance(text, str | None):
        return ValuesDocument(owner=owner, mistakes=(make_finding("helm.values", "must be a string"),))
    try:
        return _read_values(owner, "helm.values", read_yaml((text or "{}").encode(), object), others)
    except YamlError as error:
        return ValuesDocument(owner=owner, mistakes=(make_finding("helm.values", str(error)),))


def _read_values(owner: str, path: str, values: Any, others: tuple[str, ...]) -> ValuesDocument:
    if not isinstance(values, dict | None):
        return ValuesDocument(owner=owner, mistakes=(make_finding(path, "must be a mapping of values"),))
    return ValuesDocument(owner=owner, values=values or {}, other_sources=others)


def _is_helm(source: dict[str, Any]) -> bool:
    """Whether this source of an Application is a chart; another one may only hold value files."""
    return "helm" in source or "chart" in source


def _name_other_chart(chart: Any) -> str:
    """Return the name of a chart that is not this one; a path in a repository can have any name."""
    is_other = isinstance(chart, str) and chart and "/" not in chart and chart != _CHART
    return truncate_line(chart) if is_other else ""


def _refuse(owner: str, problem: str) -> ValuesDocument:
    return ValuesDocument(owner=owner, mistakes=(Finding(problem=problem),), is_other_object=True)


_NOT_CHECKED: Final = (
    "files that flags or Secrets refer to, pod settings except memory limits and required anti-affinity "
    "(tolerations, ...), extraObjects, and whether the image exists"
)


def check_values_file(text: bytes, source: str) -> list[FileReport]:
    """Check the values of each release in a file."""
    return [_check_document(each, source) for each in find_values(text)]


def _check_document(document: ValuesDocument, source: str) -> FileReport:
    if document.mistakes:
        return FileReport(source=source, owner=document.owner, mistakes=document.mistakes)
    chart = ChartValues(document.values)
    report = _check(chart, source)
    missing: tuple[Finding, ...] = ()
    elsewhere: tuple[str, ...] = document.other_sources
    if not chart.get("image.repository"):
        if document.owner and not document.other_sources:
            missing = (make_finding("image.repository", "is not set, and the chart requires it"),)
        else:  # a values file leaves it to --set or another file
            elsewhere = ("image.repository (required, not set here)", *elsewhere)
    return msgspec.structs.replace(
        report,
        owner=document.owner,
        warnings=(*document.warnings, *missing, *report.warnings),
        not_checked=", ".join((*elsewhere, _NOT_CHECKED)),
    )


def _check(chart: ChartValues, source: str) -> FileReport:
    """Check schema, image, controllers, flags and rules; findings have no lines."""
    schema, rules = check_schema(chart.values), check_config(_extract_cloud_config(chart), source)
    unknown, flags = find_controller_mistakes(chart.controllers), check_flags(chart)
    wrong_name = bool(unknown)  # reported with the valid names, instead of the schema's pattern
    former = [make_finding("useDaemonSet", "makes the installation fail. Use daemonSet.enabled")]
    return FileReport(
        source=source,
        mistakes=(
            *chart_checks.find_image_mistakes(chart),
            *(former if chart.get("useDaemonSet") else ()),
            *(each for each in schema.mistakes if not (wrong_name and "enabledControllers" in each.path)),
            *chart_checks.report_controllers(unknown),
            *chart_checks.find_template_mistakes(chart),
            *flags.mistakes,
            *_locate_in_values(rules.mistakes),
        ),
        warnings=(
            *chart_checks.find_image_warnings(chart),
            *schema.warnings,
            *chart_checks.find_idle_controllers(chart),
            *chart_checks.find_idle_values(chart),
            *chart_checks.find_low_limits(chart),
            *flags.warnings,
            *_locate_in_values(rules.warnings),
        ),
        differences=(
            *chart_checks.find_controller_differences(chart),
            *chart_checks.find_account_differences(chart),
            *chart_checks.find_affinity_differences(chart),
            *_locate_in_values(rules.differences),
        ),
        rules=rules.rules,
    )


def _extract_cloud_config(chart: ChartValues) -> str:
    """Return the --cloud-config file that the chart renders; the schema check covers other types and keys."""
    config, rules = chart.get("config"), chart.get("transformations")
    given = config.items() if isinstance(config, dict) else ()
    file: dict[str, Any] = {key: value for key, value in given if key in _SECTIONS}
    file["transformations"] = rules if isinstance(rules, list) else []
    text: str = yaml.safe_dump(file, sort_keys=False, allow_unicode=True)
    return text


def _locate_in_values(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings about the --cloud-config file with the paths of its values, and without its lines."""
    for each in findings:
        is_section = _SECTION_END.split(each.path, maxsplit=1)[0] in _SECTIONS
        path = f"config.{each.path}" if is_section else each.path
        yield msgspec.structs.replace(each, line=0, path=path)
