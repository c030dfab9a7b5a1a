"""The interface of the programs `python -m services...`: flags, controllers, exit codes."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.controllers import ALIASES, NAMES_OF_NODES
from libs.common.process.service import Run
from libs.common.settings.flags import SHARED_BOOLEANS
from libs.common.settings.of_process import ProcessSettings
from libs.common.settings.reading import options_of
from libs.common.settings.reference_flags import ACCEPTED, CONTROLLERS, runs_controller
from services.bootstrap.settings import BootstrapSettings
from services.csr.service import CSR_RUN
from services.ipam.service import IPAM_RUN
from services.labeler.service import LABELER_RUN
from services.lifecycle.service import LIFECYCLE_RUN
from services.metadata.service import METADATA_RUN
from services.watcher.service import WATCHER_RUN
from tests.contract.interface_shapes import flag_entries
from tests.contract.interface_snapshot import assert_unchanged
from tests.integration.processes import a_process

RUNS: tuple[Run[Any], ...] = (WATCHER_RUN, METADATA_RUN, LABELER_RUN, CSR_RUN, IPAM_RUN, LIFECYCLE_RUN)
SETTINGS: dict[str, list[type[msgspec.Struct]]] = {
    "services": [*(run.settings for run in RUNS), ProcessSettings],
    **{f"services.{run.wiring.service}": [run.settings, ProcessSettings] for run in RUNS},
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
        for name, entry in flag_entries(options_of(*structs)).items():
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
    assert listed <= set(flag_entries(options_of(*SETTINGS[program])))


def test_the_flags_that_every_program_accepts_are_unchanged():
    accepted = {
        f"--{flag.name}": {"boolean": flag.boolean, "no warning for": list(flag.quiet_on)}
        for flag in ACCEPTED.values()
    }
    shared = {f"--{name}": {"boolean": boolean} for name, boolean in SHARED_BOOLEANS.items()}
    assert_unchanged("flags-accepted", {"without effect": accepted, "of other services": shared})


def test_the_controllers_are_unchanged():
    assert_unchanged(
        "controllers",
        {
            "names for --controllers": list(CONTROLLERS),
            "aliases": dict(ALIASES),
            "names in --cloud-config": list(NAMES_OF_NODES),
            "of service": {run.wiring.service: run.controller for run in RUNS},
            "in *": [name for name in CONTROLLERS if runs_controller(("*",), name)],
            "services of the default": [run.wiring.service for run in RUNS if run.wiring.by_default],
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


async def test_the_exit_codes_of_a_running_process_are_unchanged(tmp_path: Path):
    codes = {}
    for how in ("returns", "ends", "fails", "misconfigured"):
        async with a_process(tmp_path, PROBE, "metadata", f"--how={how}") as process:
            codes[how] = await process.ends()
    async with a_process(tmp_path, PROBE, "metadata") as process:
        await process.serves()
        codes["gets SIGTERM"], _ = await process.ends_after_sigterm()
    assert_unchanged("exit-codes-process", codes)
