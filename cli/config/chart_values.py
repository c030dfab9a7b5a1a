"""A values file of the chart -> what of it cannot work here, or works otherwise, and its rules. Pure."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import yaml

from cli.config.checking import Checked, check
from libs.common.cloud_config.findings import shown
from libs.common.cloud_config.rule import Finding
from libs.common.settings.reference_flags import (
    NODE_LIFECYCLE,
    choose_controllers,
    differing_all,
    runs_controller,
)
from libs.common.yaml_reading import YamlError, read_yaml

_REFERENCE_IMAGE: Final = re.compile(r"(^|/)siderolabs/talos-cloud-controller-manager$")
_SPOT: Final = re.compile(r"--?delete[-_]preempted[-_]gcp[-_]spot(=.*)?")
_PROVEN: Final = (
    "names cloud-node-lifecycle, which here deletes a Node only if its machine is proven to be gone"
)
_SPOT_KEPT: Final = (
    "names cloud-node-lifecycle, which here keeps Nodes of preempted GCP spot machines, which the "
    "reference deletes: --delete-preempted-gcp-spot in extraArgs deletes them"
)


def check_values(text: str | bytes, source: str) -> Checked:
    """What `check` finds in `transformations` and `config`, without lines, and what else differs here."""
    try:
        found: Any = read_yaml(text.encode() if isinstance(text, str) else text, object)
    except YamlError as error:
        return Checked(source=source, mistakes=(Finding(line=error.line, problem=error.problem),))
    if not isinstance(found, dict | None):
        return Checked(source=source, mistakes=(Finding(problem="is not a mapping of values"),))
    return _check(found or {}, source)


def _check(values: dict[str, Any], source: str) -> Checked:
    rules = check(_config_of(values), source)
    controllers = _texts(values.get("enabledControllers"))
    chosen = choose_controllers(controllers or ("*",))  # "*": the default of the chart is no mistake
    return Checked(
        source=source,
        mistakes=(
            *_of_image(values),
            *_of_daemon_set(values),
            *_findings("enabledControllers", chosen.mistakes),
            *_without_line(rules.mistakes),
        ),
        warnings=(
            *_of_tag(values),
            *_findings("enabledControllers", chosen.warnings),
            *_without_line(rules.warnings),
        ),
        differences=(*_of_controllers(values, controllers), *_without_line(rules.differences)),
        rules=rules.rules,
    )


def _config_of(values: dict[str, Any]) -> str:
    """The --cloud-config file that the chart makes of them."""
    config = _mapping(values.get("config")) | {"transformations": values.get("transformations") or []}
    text: str = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    return text


def _of_image(values: dict[str, Any]) -> Iterator[Finding]:
    repository = str(_mapping(values.get("image")).get("repository") or "")
    if _REFERENCE_IMAGE.search(repository):
        problem = f"is {shown(repository)}, the image of the reference: name the one that you have pushed"
        yield Finding(path="image.repository", problem=problem)


def _of_tag(values: dict[str, Any]) -> Iterator[Finding]:
    tag = str(_mapping(values.get("image")).get("tag") or "")
    if tag:
        problem = f"is {shown(tag)}: leave it out unless you have pushed an image with this tag"
        yield Finding(path="image.tag", problem=problem)


def _of_daemon_set(values: dict[str, Any]) -> Iterator[Finding]:
    if values.get("useDaemonSet"):
        yield Finding(path="useDaemonSet", problem="is daemonSet.enabled here, and fails the install")


def _of_controllers(values: dict[str, Any], items: tuple[str, ...]) -> Iterator[Finding]:
    for told in differing_all(items):
        yield Finding(path="enabledControllers", problem=told.removeprefix("--controllers: "))
    if not runs_controller(items, NODE_LIFECYCLE):
        return
    yield Finding(path="enabledControllers", problem=_PROVEN)
    own = _mapping(_mapping(values.get("services")).get("lifecycle"))
    flags = (*_texts(values.get("extraArgs")), *_texts(own.get("extraArgs")))
    if not any(map(_SPOT.fullmatch, flags)):
        yield Finding(path="enabledControllers", problem=_SPOT_KEPT)


def _findings(path: str, told: Iterable[str]) -> Iterator[Finding]:
    return (Finding(path=path, problem=each.removeprefix("--controllers: ")) for each in told)


def _without_line(findings: Iterable[Finding]) -> Iterator[Finding]:
    return (msgspec.structs.replace(each, line=0) for each in findings)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(each) for each in value) if isinstance(value, list) else ()
