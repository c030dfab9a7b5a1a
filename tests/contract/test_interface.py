"""What an operator relies on: flags, commands, metrics, reasons, rights in Kubernetes and NATS.

Each is a text file in `tests/contract/interface`, one line per name. For a changed line, check that the docs
and CHANGELOG.md are still true. `make interface-snapshots` writes the files again.
"""

import ast
import difflib
import os
import re
import runpy
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import click
import msgspec
import pytest
from prometheus_client import PlatformCollector, ProcessCollector

from cli.__main__ import main
from libs.common.contract.machine import FAULT_KINDS
from libs.common.contract.services import SERVICE_TABLE, PolicyRule
from libs.common.observability import metrics
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import Option, list_options
from services.bootstrap.server_config import SYSTEM_USER, build_permissions_by_user, build_system_permissions
from services.bootstrap.settings import BootstrapSettings
from services.definitions import load_definitions
from tests.architecture.sources import Source, sources

FOLDER: Final = Path(__file__).with_name("interface")
WRITE: Final = "WRITE_INTERFACE_SNAPSHOTS"
PROGRAMS: Final[dict[str, list[type[msgspec.Struct]]]] = {
    **{run.spec.service: [run.settings, ProcessSettings] for run in load_definitions()},
    "bootstrap": [BootstrapSettings],
}
_OF_PYTHON: Final = (ProcessCollector, PlatformCollector)
_REASON: Final = re.compile(r"(?=.*[A-Z].*[A-Z].*)(?=.*[a-z])[A-Z][A-Za-z]+|Synced")
# Modules whose CamelCase strings are reasons; elsewhere they are the argument `reason` of a call.
_MODULES_OF_REASONS: Final = ("blocker", "node_events", "reports", "node_deleter", "config_reloader")


def assert_unchanged(name: str, lines: Iterable[str]) -> None:
    """Fail with a diff when the sorted lines differ from the file `<name>.txt`."""
    path = FOLDER / f"{name}.txt"
    now = sorted(set(lines))
    assert now
    if os.environ.get(WRITE):
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(now) + "\n")
        return
    recorded = path.read_text().splitlines()
    if now != recorded:
        changes = difflib.unified_diff(recorded, now, "recorded", "now", n=1, lineterm="")
        pytest.fail(f"{path.name}: run `make interface-snapshots`\n" + "\n".join(changes), pytrace=False)


def test_the_flags_of_the_services_are_unchanged():
    takers: dict[str, dict[str, None]] = {}
    for program, structs in PROGRAMS.items():
        for option in list_options(*structs):
            takers.setdefault(describe_flag(option), {})[program] = None
    everywhere = len(PROGRAMS)
    assert_unchanged(
        "flags",
        (f"{flag}  [{'all' if len(of) == everywhere else ' '.join(of)}]" for flag, of in takers.items()),
    )


def describe_flag(option: Option) -> str:
    flag = option.flag
    names = f"--{flag.name}" if flag.name else flag.config or flag.env
    default = "required" if option.default is msgspec.NODEFAULT else repr(option.default)
    return f"{names}  default {default}" + (f"  environment {flag.env}" if flag.env else "")


@pytest.mark.parametrize("program", ["", *PROGRAMS])
def test_each_program_lists_its_flags_in_its_help(
    program: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    module = f"services.{program}".rstrip(".")
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 0
    helped = capsys.readouterr().out.partition("\nOther:")[0]
    structs = PROGRAMS[program] if program else {kind for kinds in PROGRAMS.values() for kind in kinds}
    known = {f"--{name}" for option in list_options(*structs) if (name := option.flag.name)}
    listed = set(re.findall(r"^  (--[a-z0-9-]+)(?= |$)", helped, re.MULTILINE))
    assert helped.startswith(f"Usage: python -m {module} ")
    assert listed
    assert listed <= known


def test_the_commands_and_their_options_are_unchanged():
    assert_unchanged("commands", list_commands(main, "talos-ccm"))


def list_commands(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, None, path, **command.context_settings)
    options = [
        parameter.make_metavar(context) if isinstance(parameter, click.Argument) else "/".join(parameter.opts)
        for parameter in command.get_params(context)
        if "--help" not in parameter.opts  # every command has it
    ]
    yield f"{path}  {' '.join(options)}"
    for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
        yield from list_commands(inner, f"{path} {name}")


def test_the_metrics_and_their_labels_are_unchanged():
    collectors = [
        each for each in cast("Any", metrics.REGISTRY)._collector_to_names if not isinstance(each, _OF_PYTHON)
    ]
    assert_unchanged("metrics", (line for each in collectors for line in describe_metric(each)))


def describe_metric(collector: Any) -> Iterator[str]:
    # A counter of statuses has its labels in its series.
    labels = getattr(collector, "_labelnames", None) or sorted(
        {label for family in collector.collect() for sample in family.samples for label in sample.labels}
    )
    for family in collector.describe():
        name = family.name + ("_total" if family.type == "counter" else "")
        yield f"{name}  {family.type}  {' '.join(label for label in labels if label != 'le')}".rstrip()


def test_the_reasons_of_events_and_conditions_are_unchanged():
    assert_unchanged(
        "reasons",
        {
            f"{source.module.split('.')[1]}  {reason}"
            for source in sources("services")
            for reason in list_reasons(source)
        }
        | {f"labeler  {kind.block_reason}" for kind in FAULT_KINDS.values()},
    )


def list_reasons(source: Source) -> Iterator[str]:
    of_module = source.module.split(".")[-1] in _MODULES_OF_REASONS
    for node in source.nodes:
        if of_module:
            texts = [node]
        elif isinstance(node, ast.Call):
            texts = [keyword.value for keyword in node.keywords if keyword.arg == "reason"]
        else:
            continue
        for text in texts:
            if (
                isinstance(text, ast.Constant)
                and isinstance(text.value, str)
                and _REASON.fullmatch(text.value)
            ):
                yield text.value


def test_the_rights_of_the_services_in_kubernetes_are_unchanged():
    assert_unchanged(
        "kubernetes-rights",
        (f"{spec.service}  {describe_right(rule)}" for spec in SERVICE_TABLE for rule in spec.policy_rules),
    )


def describe_right(rule: PolicyRule) -> str:
    where = f" in {rule.namespace}" if rule.namespace else ""
    names = f" {' '.join(rule.resource_names)}" if rule.resource_names else ""
    condition = f" for {' or '.join(rule.controllers)}" if rule.controllers else ""
    condition += f" with --{rule.flag}" if rule.flag else ""
    return f"{rule.group or 'core'}/{rule.resource}{names}{where}: {' '.join(rule.verbs)}{condition}"


def test_the_rights_of_the_services_in_nats_are_unchanged():
    users = build_permissions_by_user(["ACCOUNT"]) | {SYSTEM_USER: build_system_permissions()}
    assert_unchanged(
        "nats-rights",
        (
            f"{user}  {verb} {subject}"
            for user, permissions in users.items()
            for verb, subjects in (
                ("publish", permissions.allow_publish),
                ("not publish", permissions.deny_publish),
                ("subscribe", permissions.allow_subscribe),
            )
            for subject in subjects
        ),
    )
