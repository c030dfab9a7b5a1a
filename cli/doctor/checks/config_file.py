"""Is the --cloud-config file one that the services take? Pure."""

from collections.abc import Iterator

from cli.config.checking import Checked, check
from cli.doctor.findings import Finding, ok, unknown, wrong
from cli.doctor.seen import Absent, NotSeen, Seen
from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.cloud_config.model import CloudConfig, Ownership
from libs.common.cloud_config.model import Finding as Mistake

_MOST = 5


def config(seen: Seen) -> Iterator[Finding]:
    """As `talos-ccm config check` judges it."""
    name, key = seen.installation.config_file
    if not name:
        yield ok("no --cloud-config is given: there are no rules")
        return
    kubectl = seen.installation.kubectl
    where = f"ConfigMap {seen.installation.namespace}/{name}"
    match seen.config:
        case NotSeen() as told:
            yield unknown(f"{where} was not read: {told.why}", told.fix, *told.commands)
        case Absent():
            again = seen.installation.apply_again
            yield wrong(f"{where} has no {key}: no pod that mounts it starts", "make it anew:", again)
        case str() as text:
            checked = check(text, f"{name}/{key}")
            if not checked.mistakes:
                yield ok(f"{where}: {_counted(len(checked.rules), 'rule')}{_warnings(checked)}")
                return
            more = len(checked.mistakes) - _MOST
            told_mistakes = "; ".join(_words(each) for each in checked.mistakes[:_MOST])
            yield wrong(
                f"{where}: {told_mistakes}" + (f"; and {more} more" if more > 0 else ""),
                "services that start refuse it, those that run keep the last one that was right. Mend config "
                "and transformations in the chart's values, then upgrade; all mistakes shows",
                f"{kubectl} get configmap {name} --output jsonpath='{{.data.{_escaped(key)}}}' "
                "| talos-ccm config check -",
            )


def ownership_of(seen: Seen, controller: str) -> Ownership:
    """Whose Nodes are ours, as the file says, as far as it can be read."""
    if not isinstance(seen.config, str):
        return Ownership()
    try:
        return parse_cloud_config(seen.config, "the file").ownership.for_controller(controller)
    except CloudConfigError as error:
        return (error.read or CloudConfig()).ownership.for_controller(controller)


def _escaped(key: str) -> str:
    """As jsonpath takes a key with dots."""
    return key.replace(".", "\\.")


def _words(mistake: Mistake) -> str:
    line = f"line {mistake.line}: " if mistake.line else ""
    return f"{line}{mistake.path} {mistake.problem}".strip()


def _warnings(checked: Checked) -> str:
    return f", {_counted(len(checked.warnings), 'warning')}" if checked.warnings else ""


def _counted(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"
