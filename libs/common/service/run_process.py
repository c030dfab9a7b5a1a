"""Runs a process, from its command line to its exit status."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, Final, TextIO

import msgspec
import uvloop

from libs.common.clocks import utc_now
from libs.common.contract.controllers import is_service_selected
from libs.common.observability import telemetry
from libs.common.observability.telemetry import level_of_verbosity
from libs.common.service.application import Application
from libs.common.service.open_bus import validate_bus
from libs.common.service.service import ServiceDefinition
from libs.common.service.serving_certificate import ServingCertificate
from libs.common.settings.flags import KUBERNETES
from libs.common.settings.help_text import format_help
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import (
    Option,
    ParsedSettings,
    SettingsError,
    list_options,
    read_settings,
)

EXIT_CONFIGURATION: Final = 2


def run_process(
    *definitions: ServiceDefinition[Any],
    program: str = "",
    conflicts: Callable[
        [Sequence[ServiceDefinition[Any]], ParsedSettings], Sequence[str]
    ] = lambda runs, reading: (),
) -> int:
    """Run these services until SIGTERM or SIGINT; return the exit status.

    `conflicts` returns why the selected services cannot run together with these settings.
    The status is 0 after a signal, 1 if a service ended by itself, 2 if the configuration is invalid.
    """
    program = program or f"python -m services.{definitions[0].spec.service}"
    kinds: list[type[msgspec.Struct]] = [*(run.settings for run in definitions), ProcessSettings]
    try:
        reading = read_settings(kinds, sys.argv[1:], os.environ)
        if reading.wants_help:
            return _print(
                sys.stdout,
                format_help(
                    program, _describe(definitions), _list_applicable(definitions, list_options(*kinds))
                ),
            )
        if reading.wants_version:
            return _print(sys.stdout, f"talos-ccm {version('talos-ccm')}\n")
        settings = reading.get(ProcessSettings)
        definitions, of_all = select_definitions(definitions, reading), definitions
        idle = [run.settings for run in of_all if run not in definitions]
        warnings = (*reading.list_warnings(idle=idle), *_idle(of_all, definitions, reading))
        reading = msgspec.structs.replace(reading, warnings=warnings)
        validate_bus(definitions, settings)
        _refuse(conflicts(definitions, reading))
        definitions = tuple(expand_definitions(definitions, reading))
        telemetry.setup_logging(
            log_format=settings.logging_format, level=level_of_verbosity(settings.verbosity)
        )
        certificate = _certificate(settings)  # before threads start: it forks
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Application(definitions, reading, certificate).run())
    except SettingsError as error:
        _print(sys.stderr, "".join(f"{program}: {mistake}\n" for mistake in str(error).splitlines()))
        return EXIT_CONFIGURATION


def select_definitions(
    definitions: Sequence[ServiceDefinition[Any]], parsed: ParsedSettings
) -> tuple[ServiceDefinition[Any], ...]:
    """Return the services that flags such as --controllers select; a service started alone always runs."""
    items = parsed.get(ProcessSettings).controllers

    def is_switched_on(run: ServiceDefinition[Any], name: str) -> bool:
        settings = parsed.get(run.settings)
        return any(
            getattr(settings, each.field) for each in list_options(run.settings) if each.flag.name == name
        )

    return tuple(
        run
        for run in definitions
        if len(definitions) == 1
        or is_service_selected(items, run.spec.controller, is_switched_on=partial(is_switched_on, run))
    )


def expand_definitions(
    definitions: Sequence[ServiceDefinition[Any]], parsed: ParsedSettings
) -> Iterator[ServiceDefinition[Any]]:
    """Yield the services that run with these settings, such as one for each account."""
    for run in definitions:
        if run.expand is None:
            yield run
        else:
            yield from run.expand(parsed.get(run.settings))


def _refuse(mistakes: Sequence[str]) -> None:
    if mistakes:
        raise SettingsError("\n".join(mistakes))


def _idle(
    runs: Sequence[ServiceDefinition[Any]], chosen: Sequence[ServiceDefinition[Any]], reading: ParsedSettings
) -> Iterator[str]:
    """Yield a warning for each flag of a service that does not run, such as a dry run without effect."""
    taken = {option.flag.name for option in list_options(*(run.settings for run in chosen), ProcessSettings)}
    for run in runs:
        if run in chosen:
            continue
        of_run = reading.get(run.settings)
        for option in list_options(run.settings):
            flag = option.flag
            if flag.name not in taken and getattr(of_run, option.field) != option.default:
                name = f"--{flag.name}" if flag.name else flag.config or flag.env
                selector = "controllers" if run.spec.controller.name else run.spec.controller.flag
                yield f"{name} has no effect: {run.spec.service} does not run (--{selector})"


def _certificate(settings: ProcessSettings) -> ServingCertificate | None:
    if settings.secure_port == 0 or not settings.secure_serving:
        return None
    return ServingCertificate(settings.tls_cert_file, settings.tls_private_key_file, now=utc_now())


def _list_applicable(runs: Sequence[ServiceDefinition[Any]], options: Sequence[Option]) -> list[Option]:
    """Return the options for --help, without those of an unused Kubernetes client, which are accepted."""
    needed = any(run.spec.policy_rules for run in runs)
    return [option for option in options if needed or option.flag.group != KUBERNETES]


def _describe(runs: Sequence[ServiceDefinition[Any]]) -> str:
    condition = ", if enabled" if len(runs) > 1 else ""
    specs = [run.spec for run in runs]
    descriptions = (
        f"{each.service} ({each.description}{'' if each.runs_by_default else condition})" for each in specs
    )
    return (
        f"Runs {', '.join(descriptions)}. In these texts, the reference controller is the Talos Cloud "
        "Controller Manager of Sidero Labs, which this one replaces."
    )


def _print(stream: TextIO, text: str) -> int:
    stream.write(text)
    stream.flush()
    return 0
