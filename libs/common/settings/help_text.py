"""The text of --help: groups, a sentence per flag, defaults, within 80 columns."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from libs.common.go_values import format_duration
from libs.common.settings.command_line import required_type
from libs.common.settings.read_settings import Option
from libs.common.settings.reference_flags import IGNORED_FLAGS

_WIDTH: Final = 80
_INDENT: Final = " " * 6


def format_help(program: str, description: str, options: Sequence[Option]) -> str:
    """Return the text with all flags of a program; a flag of several services is listed once."""
    once = {option.flag.name or option.flag.config or option.flag.env: option for option in options}
    groups = dict.fromkeys(option.flag.group for option in once.values())
    parts = [f"Usage: {program} [flags]\n", textwrap.fill(description, _WIDTH) + "\n"]
    for group in groups:
        parts.append(f"{group}:")
        parts += [_entry(option) for option in once.values() if option.flag.group == group]
        parts.append("")
    parts.append("Other:\n  -h, --help\n  --version\n")
    parts.append(
        textwrap.fill(
            "Accepted for compatibility with values of the reference controller, without effect. A warning "
            "gives the reason:",
            _WIDTH,
        )
    )
    parts.append(
        textwrap.fill(
            " ".join(f"--{name}" for name in sorted(IGNORED_FLAGS)),
            _WIDTH,
            initial_indent="  ",
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
    )
    return "\n".join(parts) + "\n"


def _entry(option: Option) -> str:
    flag = option.flag
    if flag.name:
        value = _value_name(option)
        head = f"  --{flag.name}" + (f" {value}" if value else "")
    else:
        head = f"  {flag.config or flag.env}" + (" (in the --cloud-config file)" if flag.config else "")
    tail = _default(option)
    tail += f" Environment: {flag.env}." if flag.env and flag.name else ""
    body = textwrap.fill(
        flag.help + tail,
        _WIDTH,
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return f"{head}\n{body}"


def _value_name(option: Option) -> str:
    inner, _ = required_type(option.type)
    if get_origin(inner) is Literal:
        return "|".join(get_args(inner))
    if inner is float and not option.is_duration:
        return "number"
    names: dict[Any, str] = {bool: "", int: "int", float: "duration", str: "text", Path: "file"}
    return names.get(inner, "list")


def _default(option: Option) -> str:
    value = option.default
    if value is None or value is False or value in ("", ()):
        return ""
    if option.is_duration:
        return f" Default: {format_duration(value)}."
    if isinstance(value, tuple):
        return f" Default: {','.join(value)}."
    return f" Default: {str(value).lower() if isinstance(value, bool) else value}."
