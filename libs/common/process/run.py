"""A process from its command line to its exit status."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final, TextIO

import msgspec
import uvloop

from libs.common import telemetry
from libs.common.logs import level_of_verbosity
from libs.common.process.assembly import Assembly
from libs.common.process.messages import judge_bus
from libs.common.process.service import Run
from libs.common.process.serving_certificate import ServingCertificate
from libs.common.settings.flags import KUBERNETES
from libs.common.settings.help_text import help_text
from libs.common.settings.of_process import ProcessSettings
from libs.common.settings.reading import Option, Reading, SettingsError, options_of, read_settings
from libs.common.settings.reference_flags import runs_controller

EXIT_CONFIGURATION: Final = 2


def run_process(
    *runs: Run[Any],
    program: str = "",
    conflicts: Callable[[Sequence[Run[Any]], Reading], Sequence[str]] = lambda runs, reading: (),
    arguments: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run these services until SIGTERM or SIGINT; return the exit status.

    `conflicts` returns why the services that were chosen cannot run together with these settings.
    0 after a signal, 1 when a service ended by itself, 2 when only another configuration can help.
    """
    program = program or f"python -m services.{runs[0].wiring.service}"
    arguments = sys.argv[1:] if arguments is None else arguments
    environment = os.environ if environment is None else environment
    kinds: list[type[msgspec.Struct]] = [*(run.settings for run in runs), ProcessSettings]
    try:
        reading = read_settings(kinds, arguments, environment)
        if reading.wants_help:
            return _say(sys.stdout, help_text(program, _what(runs), _of_use(runs, options_of(*kinds))))
        if reading.wants_version:
            return _say(sys.stdout, f"talos-ccm {version('talos-ccm')}\n")
        settings = reading.of(ProcessSettings)
        runs, of_all = chosen_runs(runs, reading), runs
        warnings = (*reading.warnings, *_idle(of_all, runs, reading))
        reading = msgspec.structs.replace(reading, warnings=warnings)
        judge_bus(runs, settings)
        _refuse(conflicts(runs, reading))
        telemetry.setup_logging(
            log_format=settings.logging_format, level=level_of_verbosity(settings.verbosity)
        )
        certificate = _certificate(settings)  # before there are threads: it forks
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Assembly(runs, reading, environment, certificate).run())
    except SettingsError as error:
        _say(sys.stderr, "".join(f"{program}: {mistake}\n" for mistake in str(error).splitlines()))
        return EXIT_CONFIGURATION


def chosen_runs(runs: Sequence[Run[Any]], reading: Reading) -> tuple[Run[Any], ...]:
    """Those that --controllers and the like ask for; a service that was started alone was chosen by that."""
    items = reading.of(ProcessSettings).controllers
    return tuple(
        run
        for run in runs
        if len(runs) == 1
        or (
            (not run.controller or runs_controller(items, run.controller))
            and run.wanted(reading.of(run.settings))
        )
    )


def _refuse(mistakes: Sequence[str]) -> None:
    if mistakes:
        raise SettingsError("\n".join(mistakes))


def _idle(runs: Sequence[Run[Any]], chosen: Sequence[Run[Any]], reading: Reading) -> Iterator[str]:
    """What was said to a service that does not run: whoever asks for a dry run of it waits in vain."""
    taken = {option.flag.name for option in options_of(*(run.settings for run in chosen), ProcessSettings)}
    for run in runs:
        if run in chosen:
            continue
        of_run = reading.of(run.settings)
        for option in options_of(run.settings):
            if option.flag.name not in taken and getattr(of_run, option.field) != option.default:
                yield f"--{option.flag.name} has no effect: {run.wiring.service} does not run (--controllers)"


def _certificate(settings: ProcessSettings) -> ServingCertificate | None:
    if settings.secure_port == 0 or not settings.secure_serving:
        return None
    return ServingCertificate(settings.tls_cert_file, settings.tls_private_key_file, now=datetime.now(UTC))


def _of_use(runs: Sequence[Run[Any]], options: Sequence[Option]) -> list[Option]:
    """The options without those of a Kubernetes client where no service has one; they are accepted."""
    needed = any(run.wiring.rights for run in runs)
    return [option for option in options if needed or option.flag.group != KUBERNETES]


def _what(runs: Sequence[Run[Any]]) -> str:
    asked = ", where --controllers and the like ask for it" if len(runs) > 1 else ""
    wirings = [run.wiring for run in runs]
    told = (f"{each.service} ({each.does}{'' if each.by_default else asked})" for each in wirings)
    return f"Runs {', '.join(told)}."


def _say(stream: TextIO, text: str) -> int:
    stream.write(text)
    stream.flush()
    return 0
