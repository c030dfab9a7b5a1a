"""Whether the services accept the --cloud-config file. Pure."""

from cli.cluster.unavailable import Unavailable
from cli.config.config_check import check_config
from cli.doctor.findings import Check, Finding
from cli.doctor.snapshot import InstallationSnapshot
from cli.lines import pluralize
from libs.common.cloud_config.model import Finding as Mistake

_MAX_SHOWN = 5


def check_config_file(seen: InstallationSnapshot) -> Check:
    """Check the file by the rules of `talos-ccm config check`."""
    name, key = seen.installation.config_file
    if not name:
        return "no --cloud-config is configured, so there are no rules"
    where = f"ConfigMap {seen.installation.namespace}/{name}"
    if isinstance(seen.config, Unavailable):
        yield Finding.unavailable(f"{where} was not read", seen.config)
        return ""
    if seen.config is None:
        again = seen.installation.reapply_command
        yield Finding.wrong(
            f"{where} has no {key}: pods that mount it do not start", "create it again:", again
        )
        return ""
    checked = check_config(seen.config.text, seen.config.source)
    if checked.mistakes:
        more = len(checked.mistakes) - _MAX_SHOWN
        shown = "; ".join(map(_format_mistake, checked.mistakes[:_MAX_SHOWN]))
        yield Finding.wrong(
            f"{where}: {shown}" + (f"; and {more} more" if more > 0 else ""),
            "new pods reject the file, and running services keep the last valid one. Correct config "
            "and transformations in the chart's values, then upgrade. To see all mistakes:",
            f"{seen.installation.kubectl} get configmap {name} --output jsonpath='"
            f"{{.data.{_escape_jsonpath(key)}}}' | talos-ccm config check -",
        )
    warnings = f", {pluralize(len(checked.warnings), 'warning')}" if checked.warnings else ""
    return f"{where}: {pluralize(len(checked.rules), 'rule', zero='no')}{warnings}"


def _escape_jsonpath(key: str) -> str:
    """Escape the dots of a key for jsonpath."""
    return key.replace(".", "\\.")


def _format_mistake(mistake: Mistake) -> str:
    line = f"line {mistake.line}: " if mistake.line else ""
    return f"{line}{mistake.path} {mistake.problem}".strip()
