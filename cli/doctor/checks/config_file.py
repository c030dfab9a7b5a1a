"""Whether the services accept the --cloud-config file. Pure."""

from collections.abc import Iterator

from cli.cluster.snapshot import ConfigFile
from cli.cluster.unavailable import AbsentObject, Unavailable
from cli.config.config_check import FileReport, check_config
from cli.doctor.findings import Finding, report_ok, report_unavailable, report_wrong
from cli.doctor.snapshot import InstallationSnapshot
from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.cloud_config.model import CloudConfig, Ownership
from libs.common.cloud_config.model import Finding as Mistake

_MAX_SHOWN = 5


def check_config_file(seen: InstallationSnapshot) -> Iterator[Finding]:
    """Check the file by the rules of `talos-ccm config check`."""
    name, key = seen.installation.config_file
    if not name:
        yield report_ok("no --cloud-config is configured, so there are no rules")
        return
    kubectl = seen.installation.kubectl
    where = f"ConfigMap {seen.installation.namespace}/{name}"
    match seen.config:
        case Unavailable() as unavailable:
            yield report_unavailable(f"{where} was not read", unavailable)
        case AbsentObject():
            again = seen.installation.reapply_command
            yield report_wrong(
                f"{where} has no {key}: pods that mount it do not start", "create it again:", again
            )
        case file:
            checked = check_config(file.text, file.source)
            if not checked.mistakes:
                yield report_ok(
                    f"{where}: {_pluralize(len(checked.rules), 'rule')}{_format_warnings(checked)}"
                )
                return
            more = len(checked.mistakes) - _MAX_SHOWN
            told_mistakes = "; ".join(_format_mistake(each) for each in checked.mistakes[:_MAX_SHOWN])
            yield report_wrong(
                f"{where}: {told_mistakes}" + (f"; and {more} more" if more > 0 else ""),
                "new pods reject the file, and running services keep the last valid one. Correct config "
                "and transformations in the chart's values, then upgrade. To see all mistakes:",
                f"{kubectl} get configmap {name} --output jsonpath='{{.data.{_escape_jsonpath(key)}}}' | "
                "talos-ccm config check -",
            )


def read_ownership_of(seen: InstallationSnapshot, controller: str) -> Ownership:
    """Return the ownership section of the file, as far as it can be parsed."""
    if not isinstance(seen.config, ConfigFile):
        return Ownership()
    try:
        return parse_cloud_config(seen.config.text, "the file").ownership.for_controller(controller)
    except CloudConfigError as error:
        return (error.read or CloudConfig()).ownership.for_controller(controller)


def _escape_jsonpath(key: str) -> str:
    """Escape the dots of a key for jsonpath."""
    return key.replace(".", "\\.")


def _format_mistake(mistake: Mistake) -> str:
    line = f"line {mistake.line}: " if mistake.line else ""
    return f"{line}{mistake.path} {mistake.problem}".strip()


def _format_warnings(checked: FileReport) -> str:
    return f", {_pluralize(len(checked.warnings), 'warning')}" if checked.warnings else ""


def _pluralize(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"
