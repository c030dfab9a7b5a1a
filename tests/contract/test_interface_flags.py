"""The interface of the programs `python -m services...`: flags, controllers, exit codes."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.contract.controllers import ALIASES, NODE_CONTROLLER_NAMES
from libs.common.service.service import ServiceDefinition
from libs.common.settings.flags import SHARED_BOOLEANS
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import list_options
from libs.common.settings.reference_flags import CONTROLLERS, IGNORED_FLAGS, is_controller_selected
from services.bootstrap.settings import BootstrapSettings
from tests.contract.interface_shapes import flag_entries
from tests.contract.interface_snapshot import assert_unchanged
from tests.integration.processes import a_new_interpreter
from tests.service_definitions import DEFINITIONS


def selected_by_name_alone(run: ServiceDefinition[Any]) -> str:
    """The controller that selects the service; "" where a flag can select it, too, or nothing must."""
    return "" if run.spec.controller.flag else run.spec.controller.name


SETTINGS: dict[str, list[type[msgspec.Struct]]] = {
    "services": [*(run.settings for run in DEFINITIONS), ProcessSettings],
    **{f"services.{run.spec.service}": [run.settings, ProcessSettings] for run in DEFINITIONS},
    "services.bootstrap": [BootstrapSettings],
}
PROBE = "tests.integration.process_under_test"


def status(program: str, *arguments: str) -> int:
    """Run `python -m program` in this process until it ends."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", [program, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(program, run_name="__main__")
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_every_flag_of_every_program_is_unchanged():
    """Each name is a key; a program that takes it with another type or default has its own item."""
    found: dict[str, list[dict[str, Any]]] = {}
    for program, structs in SETTINGS.items():
        for name, entry in flag_entries(list_options(*structs)).items():
            kinds = found.setdefault(name, [])
            same = [kind for kind in kinds if kind["flag"] == entry]
            if not same:
                same = [{"flag": entry, "programs": []}]
                kinds += same
            same[0]["programs"].append(f"python -m {program}")
    assert_unchanged("flags", found)


@pytest.mark.parametrize("program", SETTINGS)
def test_each_program_lists_its_flags_in_its_help(program: str, capsys: pytest.CaptureFixture[str]):
    """The snapshot of the flags is about the program that is started, not about a list in a test."""
    assert status(program, "--help") == 0
    helped = capsys.readouterr().out.partition("\nOther:")[0]
    listed = set(re.findall(r"^  (--[a-z0-9-]+)(?= |$)", helped, re.MULTILINE))
    assert helped.startswith(f"Usage: python -m {program} ")
    assert listed
    assert listed <= set(flag_entries(list_options(*SETTINGS[program])))


def test_the_flags_that_every_program_accepts_are_unchanged():
    accepted = {
        f"--{flag.name}": {"boolean": flag.is_boolean, "no warning for": list(flag.silent_values)}
        for flag in IGNORED_FLAGS.values()
    }
    shared = {f"--{name}": {"boolean": boolean} for name, boolean in SHARED_BOOLEANS.items()}
    assert_unchanged("flags-accepted", {"without effect": accepted, "of other services": shared})


def test_the_controllers_are_unchanged():
    assert_unchanged(
        "controllers",
        {
            "names for --controllers": list(CONTROLLERS),
            "aliases": dict(ALIASES),
            "names in --cloud-config": list(NODE_CONTROLLER_NAMES),
            "of service": {run.spec.service: selected_by_name_alone(run) for run in DEFINITIONS},
            "in *": [name for name in CONTROLLERS if is_controller_selected(("*",), name)],
            "services of the default": [run.spec.service for run in DEFINITIONS if run.spec.runs_by_default],
        },
    )


def test_the_exit_codes_of_a_command_line_are_unchanged():
    cases = {
        "--help": ["--help"],
        "--version": ["--version"],
        "unknown flag": ["--no-such-flag"],
        "invalid value": ["--v=many"],
        "stray argument": ["word"],
    }
    codes = {
        case: {f"python -m {program}": status(program, *arguments) for program in SETTINGS}
        for case, arguments in cases.items()
    }
    assert_unchanged("exit-codes-command-line", codes)


@pytest.mark.parametrize("program", ["services", "services.metadata"])
def test_both_names_of_a_renamed_flag_end_a_program_with_status_2(
    program: str, capsys: pytest.CaptureFixture[str]
):
    assert status(program, "--talos-look-deadline=1s", "--talos-query-timeout=1s") == 2
    assert "--talos-look-deadline and --talos-query-timeout are the same flag" in capsys.readouterr().err


async def test_the_exit_codes_of_a_running_process_are_unchanged(tmp_path: Path):
    codes = {}
    for how in ("returns", "ends", "fails", "misconfigured"):
        async with a_new_interpreter(tmp_path, PROBE, "metadata", f"--how={how}") as process:
            codes[how] = await process.ends()
    async with a_new_interpreter(tmp_path, PROBE, "metadata") as process:
        await process.serves()
        codes["gets SIGTERM"], _ = await process.ends_after_sigterm()
    assert_unchanged("exit-codes-process", codes)
