"""Renamed flags: the old name works with a warning, and both names together are an error."""

from typing import Any

import msgspec
import pytest

from cli.cluster.kube_objects import Container
from cli.config.chart_values import check_values
from libs.common.settings.help_text import format_help
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import SettingsError, list_options, read_settings
from libs.common.settings.renamed_flags import OLD_NAMES
from services.csr.settings import CsrSettings
from services.labeler.settings import LabelerSettings
from services.metadata.settings import MetadataSettings

REPEAT, INTERVAL = "--metadata-repeat-period", "--metadata-republish-interval"
DEPRECATED = f"{REPEAT} is deprecated and will be removed in version 0.3: use {INTERVAL}"
RENAMED = [  # old name, new name, field of metadata's settings, text, value
    ("talos-watched-look-period", "talos-resync-period", "talos_resync_seconds", "10m", 600.0),
    ("metadata-repeat-period", "metadata-republish-interval", "republish_interval_seconds", "2m", 120.0),
    ("talos-concurrent-looks", "talos-max-concurrent-queries", "max_concurrent_queries", "7", 7),
    ("talos-look-deadline", "talos-query-timeout", "query_timeout_seconds", "3s", 3.0),
]


def read(kind: type[msgspec.Struct], *arguments: str) -> tuple[Any, tuple[str, ...]]:
    """Settings and warnings."""
    parsed = read_settings([kind, ProcessSettings], arguments, {})
    return parsed.get(kind), parsed.warnings


def mistakes(kind: type[msgspec.Struct], *arguments: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(kind, *arguments)
    return str(caught.value).splitlines()


def test_every_renamed_flag_is_in_these_tests():
    assert {new: old for old, new, *_ in RENAMED} == OLD_NAMES


@pytest.mark.parametrize(("old", "new", "field", "text", "value"), RENAMED)
def test_either_name_sets_the_value_and_the_old_one_warns(
    old: str, new: str, field: str, text: str, value: object
):
    settings, warnings = read(MetadataSettings, f"--{new}={text}")
    assert (getattr(settings, field), warnings) == (value, ())
    settings, warnings = read(MetadataSettings, f"--{old.replace('-', '_')}", text)
    assert getattr(settings, field) == value
    assert warnings == (f"--{old} is deprecated and will be removed in version 0.3: use --{new}",)


@pytest.mark.parametrize(("old", "new", "field", "text", "value"), RENAMED)
def test_both_names_together_are_an_error_that_names_both(
    old: str, new: str, field: str, text: str, value: object
):
    expected = [f"--{old} and --{new} are the same flag: remove --{old}, the old name"]
    assert mistakes(MetadataSettings, f"--{old}={text}", f"--{new}={text}") == expected


def test_a_mistake_names_the_flag_as_the_command_line_spells_it():
    (mistake,) = mistakes(MetadataSettings, "--talos-look-deadline=soon")
    assert mistake.startswith('--talos-look-deadline: "soon" is not a duration')


def test_a_service_that_does_not_take_the_flag_accepts_the_old_name_and_never_both():
    _, warnings = read(LabelerSettings, f"{REPEAT}=2m")
    assert warnings == (DEPRECATED, f"{REPEAT} has no effect here: it belongs to another service")
    assert len(mistakes(LabelerSettings, f"{REPEAT}=2m", f"{INTERVAL}=2m")) == 1


@pytest.mark.parametrize("kind", [MetadataSettings, CsrSettings])
def test_the_help_lists_the_new_name_and_the_old_one_as_deprecated(kind: type[msgspec.Struct]):
    lines = format_help("x", "Does.", list_options(kind)).splitlines()
    assert f"  {INTERVAL} duration" in lines
    assert f"      Deprecated name, removed in version 0.3: {REPEAT}." in lines
    assert not any(line.startswith(f"  {REPEAT}") for line in lines)


@pytest.mark.parametrize("spelling", [REPEAT, INTERVAL])
def test_doctor_reads_the_flag_of_a_pod_under_either_name(spelling: str):
    container = Container(name="metadata", args=(f"{spelling}=2m",))
    assert container.last_flag_value("metadata-republish-interval", "5m") == "2m"


def check(text: str) -> tuple[list[str], list[str]]:
    """Mistakes and warnings of the chart's values."""
    found = check_values(text, "values.yaml")
    of_each = ([f"{each.path} {each.problem}" for each in of] for of in (found.mistakes, found.warnings))
    mistakes, warnings = of_each
    return mistakes, warnings


def test_values_with_the_old_name_are_valid_with_one_warning():
    assert check(f"extraArgs: [{INTERVAL}=2m]") == ([], [])
    assert check(f"extraArgs: [{REPEAT}=2m]") == ([], [f"extraArgs: {DEPRECATED}"])


def test_values_that_give_one_process_both_names_are_invalid():
    text = f"extraArgs: [{REPEAT}=2m]\nservices: {{metadata: {{extraArgs: [{INTERVAL}=2m]}}}}"
    (mistake,), _ = check(text)
    assert mistake.startswith(f"services.metadata.extraArgs: {REPEAT} and {INTERVAL} are the same flag")
