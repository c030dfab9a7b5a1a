"""A command line as pflag reads it, and the text of each value by its type."""

import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from libs.common.go_values import parse_bool, parse_duration


def parse_list(text: str) -> tuple[str, ...]:
    """Return the items of a comma-separated list, without surrounding spaces and empty items."""
    return tuple(item for item in (part.strip() for part in text.split(",")) if item)


def required_type(annotated: object) -> tuple[Any, bool]:
    """Return the type without its `| None`, and whether it had one."""
    if get_origin(annotated) in (Union, types.UnionType):
        inner = [arm for arm in get_args(annotated) if arm is not type(None)]
        if len(inner) != 1:
            raise TypeError(f"{annotated} is no type for a setting")
        return inner[0], True
    return annotated, False


def select_parser(wanted: object, *, duration: bool) -> Callable[[str], Any]:
    """Return the parser of a field of that type. Raises TypeError for an unsupported type."""
    inner, _ = required_type(wanted)
    if get_origin(inner) is Literal:
        return _one_of(get_args(inner))
    if inner == tuple[str, ...]:
        return parse_list
    if inner is float:
        return parse_duration if duration else _number
    simple: dict[Any, Callable[[str], Any]] = {bool: parse_bool, int: _whole, str: str, Path: _path}
    if inner not in simple:
        raise TypeError(f"{wanted} is no type for a setting")
    return simple[inner]


def _whole(text: str) -> int:
    if re.fullmatch(r"[+-]?\d+", text, re.ASCII) is None:
        raise ValueError("a whole number")
    return int(text)


def _number(text: str) -> float:
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)", text, re.ASCII) is None:
        raise ValueError("a number")
    return float(text)


def _path(text: str) -> Path:
    if not text:
        raise ValueError("a file name")
    return Path(text)


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def chosen(text: str) -> str:
        if text not in choices:
            raise ValueError("one of " + ", ".join(choices))
        return text

    return chosen


class CommandLine(msgspec.Struct, frozen=True):
    """A parsed command line."""

    flags: tuple[tuple[str, str], ...]  # name and value as written
    unknown: tuple[str, ...]  # unknown flags, without dashes
    mistakes: tuple[str, ...]  # other errors
    wants_help: bool = False
    wants_version: bool = False


def parse_command_line(arguments: Sequence[str], takes_value: Mapping[str, bool]) -> CommandLine:
    """Parse a command line; `takes_value` has each known flag, and whether a value must follow it."""
    given: list[tuple[str, str]] = []
    unknown: list[str] = []
    mistakes: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in ("-h", "--help", "-help"):
            return CommandLine((), (), (), wants_help=True)
        if word == "--version" or word.startswith("--version="):
            return CommandLine((), (), (), wants_version=True)
        if not word.startswith("-") or word in ("-", "--"):
            mistakes.append(_unexpected(word, given, takes_value))
            continue
        name, equals, value = _name_and_value(word)
        if name not in takes_value:
            unknown.append(name)
            if not equals and rest and not rest[0].startswith("-"):
                rest.pop(0)  # most likely its value: report one mistake only
        elif equals or not takes_value[name]:
            given.append((name, value if equals else "true"))
        elif not rest:
            mistakes.append(f"--{name} needs a value")
        else:
            given.append((name, rest.pop(0)))
    return CommandLine(tuple(given), tuple(unknown), tuple(mistakes))


def _name_and_value(word: str) -> tuple[str, str, str]:
    if word.startswith("-v") and not word.startswith("--") and word[2:].isdigit():
        return "v", "=", word[2:]
    name, equals, value = word.lstrip("-").partition("=")
    return name.replace("_", "-"), equals, value  # as Kubernetes normalizes its flags


def _unexpected(word: str, given: Sequence[tuple[str, str]], takes_value: Mapping[str, bool]) -> str:
    last = given[-1][0] if given else ""
    if last and not takes_value[last] and word in ("true", "false"):
        return f'"{word}" is not a flag: set a boolean with =, --{last}={word}'
    return f'"{word}" is not a flag: flags begin with --'
