"""Reads files, checks them and prints the findings."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cli.config.chart_values import check_values_file
from cli.config.config_check import FileReport, add_values_file_hint, check_config
from cli.config.report_output import format_report, report_to_json
from cli.input_file import read_input
from cli.lines import print_error, print_json, print_lines
from libs.common.settings.cloud_config_reloader import UnreadableFile

EXIT_VALID, EXIT_INVALID, EXIT_NOT_CHECKED = 0, 1, 2


def check_files(
    files: Sequence[Path], *, chart_values: bool, as_text: bool, strict: bool, differences: bool
) -> int:
    """Check all files, print the findings and return the exit status."""
    judge = check_values_file if chart_values else _check_config
    checked: list[FileReport] = []
    unreadable: list[tuple[str, str]] = []
    for path in files:
        source, content = read_input(path)
        if isinstance(content, UnreadableFile):
            unreadable.append((source, content.reason))
        else:
            checked += judge(content, source)
    console = Console(highlight=False)
    if as_text:
        for one in checked:
            print_lines(format_report(one, differences=differences), console)
        for source, reason in unreadable:
            print_error(f"{source}: cannot be read: {reason}")
    else:
        print_json(report_to_json(checked, unreadable))
    if unreadable:
        return EXIT_NOT_CHECKED
    bad = any(one.mistakes or (strict and one.warnings) for one in checked)
    return EXIT_INVALID if bad else EXIT_VALID


def _check_config(content: bytes, source: str) -> list[FileReport]:
    return [add_values_file_hint(check_config(content, source))]
