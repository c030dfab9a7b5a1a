"""Reads the files, has them checked, says what was found."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cli.config.chart_values import check_values
from cli.config.checking import Checked, check, with_hint
from cli.config.told import as_json, lines
from cli.lines import complain, print_json, print_lines
from libs.common.safe_yaml import MAX_BYTES
from libs.common.settings.cloud_config_reloader import UnreadableFile, read_config_file

GOOD, MISTAKEN, NOT_CHECKED = 0, 1, 2


def check_files(
    files: Sequence[Path], *, chart_values: bool, as_text: bool, strict: bool, differences: bool
) -> int:
    """Check them all; the exit status."""
    judge = check_values if chart_values else _check_config
    checked: list[Checked] = []
    unreadable: list[tuple[str, str]] = []
    for path in files:
        source = "standard input" if str(path) == "-" else str(path)
        content = sys.stdin.buffer.read(MAX_BYTES + 1) if str(path) == "-" else read_config_file(path)
        if isinstance(content, UnreadableFile):
            unreadable.append((source, content.reason))
        else:
            checked.append(judge(content, source))
    console = Console(highlight=False)
    if as_text:
        for one in checked:
            print_lines(lines(one, differences=differences), console)
        for source, reason in unreadable:
            complain(f"{source}: cannot be read: {reason}")
    else:
        print_json(as_json(checked, unreadable))
    if unreadable:
        return NOT_CHECKED
    bad = any(one.mistakes or (strict and one.warnings) for one in checked)
    return MISTAKEN if bad else GOOD


def _check_config(content: bytes, source: str) -> Checked:
    return with_hint(check(content, source))
