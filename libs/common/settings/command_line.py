"""A command line as pflag reads it: `--flag=value`, `--flag value`, booleans without a value, `-v2`."""

from collections.abc import Mapping, Sequence

import msgspec


class FlagArgument(msgspec.Struct, frozen=True):
    """One flag as written."""

    name: str
    value: str


class CommandLine(msgspec.Struct, frozen=True):
    """A parsed command line."""

    flags: tuple[FlagArgument, ...]
    unknown: tuple[str, ...]  # unknown flags, without dashes
    mistakes: tuple[str, ...]  # other errors
    wants_help: bool = False
    wants_version: bool = False


def parse_command_line(arguments: Sequence[str], takes_value: Mapping[str, bool]) -> CommandLine:
    """Parse a command line; `takes_value` has each known flag, and whether a value must follow it."""
    given: list[FlagArgument] = []
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
            given.append(FlagArgument(name, value if equals else "true"))
        elif not rest:
            mistakes.append(f"--{name} needs a value")
        else:
            given.append(FlagArgument(name, rest.pop(0)))
    return CommandLine(tuple(given), tuple(unknown), tuple(mistakes))


def _name_and_value(word: str) -> tuple[str, str, str]:
    if word.startswith("-v") and not word.startswith("--") and word[2:].isdigit():
        return "v", "=", word[2:]
    name, equals, value = word.lstrip("-").partition("=")
    return name.replace("_", "-"), equals, value  # as Kubernetes normalizes its flags


def _unexpected(word: str, given: Sequence[FlagArgument], takes_value: Mapping[str, bool]) -> str:
    if given and not takes_value[given[-1].name] and word in ("true", "false"):
        return f'"{word}" is not a flag: set a boolean with =, --{given[-1].name}={word}'
    return f'"{word}" is not a flag: flags begin with --'
