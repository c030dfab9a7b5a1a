"""Reads one frozen struct per service from command line, environment and --cloud-config, once at startup.

One message has all mistakes. `Annotated[type, Flag(...)]` gives the source of a field; a field of type
CloudConfig is the whole --cloud-config file.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from libs.common.cloud_config.model import CloudConfig
from libs.common.contract.controllers import list_wildcard_differences
from libs.common.go_values import format_duration
from libs.common.settings.cloud_config_reloader import parse_config_file, read_config_file
from libs.common.settings.command_line import (
    CommandLine,
    parse_command_line,
    parse_list,
    required_type,
    select_parser,
)
from libs.common.settings.flags import CLOUD_CONFIG, CONTROLLERS, SHARED_FLAGS, Flag
from libs.common.settings.reference_flags import IGNORED_FLAGS

S = TypeVar("S", bound=msgspec.Struct)


class SettingsError(Exception):
    """The configuration is invalid: the process prints the text and exits with status 2."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a settings struct that has a Flag."""

    owner: Any  # the struct class
    field: str
    flag: Flag
    type: Any
    default: Any
    parse: Callable[[str], Any]

    @property
    def is_boolean(self) -> bool:
        return required_type(self.type)[0] is bool

    @property
    def is_duration(self) -> bool:
        return required_type(self.type)[0] is float and self.field.endswith("_seconds")


class ParsedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a process, and warnings for its start."""

    structs: dict[Any, Any] = {}
    warnings: tuple[str, ...] = ()
    wants_help: bool = False
    wants_version: bool = False

    def get(self, kind: type[S]) -> S:
        """Return the settings of that struct."""
        found: S = self.structs[kind]
        return found

    def list_warnings(self, *, idle: Iterable[Any]) -> tuple[str, ...]:
        """Return the warnings without those of the structs of services that do not run."""
        of_idle = {text for kind in idle for text in _collect_messages(self.structs[kind], "warnings")}
        return tuple(each for each in self.warnings if each not in of_idle)


def list_options(*structs: type[msgspec.Struct]) -> list[Option]:
    """Return all fields with a Flag, in the order of definition."""
    return [option for struct in structs for option in _options(struct)]


def _options(struct: type[msgspec.Struct]) -> list[Option]:
    hints = get_type_hints(struct, include_extras=True)
    defaults = {field.name: field for field in msgspec.structs.fields(struct)}
    return [
        Option(
            owner=struct,
            field=name,
            flag=flag,
            type=get_args(hint)[0],
            default=defaults[name].default,
            parse=select_parser(get_args(hint)[0], duration=name.endswith("_seconds")),
        )
        for name, hint in hints.items()
        if get_origin(hint) is Annotated
        for flag in get_args(hint)[1:]
        if isinstance(flag, Flag)
    ]


def read_settings(
    structs: Sequence[type[msgspec.Struct]], arguments: Sequence[str], environment: Mapping[str, str]
) -> ParsedSettings:
    """Read all structs. Raises SettingsError with every mistake, one per line.

    A struct may have `problems()`, mistakes between fields, and `warnings()`, which are logged at startup.
    """
    reading, mistakes = validate_settings(structs, arguments, environment)
    if mistakes:
        raise SettingsError("\n".join(mistakes))
    return reading


def validate_settings(
    structs: Sequence[type[msgspec.Struct]],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    config: CloudConfig | None = None,
) -> tuple[ParsedSettings, tuple[str, ...]]:
    """Return the settings and every mistake. With `config`, the file of --cloud-config is not read."""
    options = list_options(*structs)
    words = parse_command_line(arguments, _takes_value(options))
    if words.wants_help or words.wants_version:
        return ParsedSettings(wants_help=words.wants_help, wants_version=words.wants_version), ()
    mistakes = [_unknown(name, options) for name in words.unknown] + list(words.mistakes)
    written = _by_name(words, options)
    if config is None:
        config = _cloud_config(written.get(CLOUD_CONFIG.name, ""), mistakes)
    sources = _Sources(written=written, environment=environment, config=config)
    values = [(option, _value(option, sources, mistakes)) for option in options]
    read: dict[Any, Any] = {}
    warnings = [
        *_without_effect(words, options),
        *list_wildcard_differences(parse_list(written.get(CONTROLLERS.name, ""))),
        *_about_file(config, written.get(CLOUD_CONFIG.name, "")),
    ]
    for struct in structs:
        own = {option.field: value for option, value in values if option.owner is struct}
        read[struct] = struct(**own, **dict.fromkeys(_whole_files(struct), config))
        mistakes += _collect_messages(read[struct], "problems")
        warnings += _collect_messages(read[struct], "warnings")
    reading = ParsedSettings(structs=read, warnings=tuple(dict.fromkeys(warnings)))
    return reading, tuple(dict.fromkeys(mistakes))


def _whole_files(struct: type[msgspec.Struct]) -> list[str]:
    return [name for name, hint in get_type_hints(struct).items() if hint is CloudConfig]


class _Sources(msgspec.Struct, frozen=True, kw_only=True):
    written: Mapping[str, str]
    environment: Mapping[str, str]
    config: CloudConfig

    def text_for(self, flag: Flag) -> tuple[str, str] | None:
        """Return the text for that flag and its source, None without one."""
        if flag.name and flag.name in self.written:
            return self.written[flag.name], f"--{flag.name}"
        if flag.env.endswith("*"):
            prefix = flag.env.removesuffix("*")
            named = (f"{name}={self.environment[name]}" for name in sorted(self.environment))
            return ",".join(text for text in named if text.startswith(prefix)), flag.env
        if flag.env and self.environment.get(flag.env):
            return self.environment[flag.env], flag.env
        return None


def _value(option: Option, sources: _Sources, mistakes: list[str]) -> Any:
    flag = option.flag
    if flag.config and flag.config in sources.config.values:
        return sources.config.values[flag.config]  # validated with the file, where the line is known
    found = sources.text_for(flag)
    if found is None:
        return option.default
    text, where = found
    if not text and required_type(option.type)[1]:
        return None
    try:
        return _within(option.parse(text), option)
    except ValueError as error:
        mistakes.append(f'{where}: "{text}" is not {error}')
        return option.default


def _within(value: Any, option: Option) -> Any:
    flag = option.flag
    shown = format_duration if option.is_duration else "{:g}".format
    if flag.at_least is not None and value < flag.at_least:
        raise ValueError(f"at least {shown(flag.at_least)}")
    if flag.at_most is not None and value > flag.at_most:
        raise ValueError(f"at most {shown(flag.at_most)}")
    return value


def _takes_value(options: Sequence[Option]) -> dict[str, bool]:
    takes = {name: not accepted.is_boolean for name, accepted in IGNORED_FLAGS.items()}
    takes |= {name: not flag.is_boolean for name, flag in SHARED_FLAGS.items()}
    return takes | {option.flag.name: not option.is_boolean for option in options if option.flag.name}


def _by_name(words: CommandLine, options: Sequence[Option]) -> dict[str, str]:
    """Return flag -> text; the last value counts, lists are joined."""
    lists = {option.flag.name for option in options if option.type == tuple[str, ...]}
    written: dict[str, str] = {}
    for name, value in words.flags:
        written[name] = f"{written[name]},{value}" if name in lists and name in written else value
    return written


def _unknown(name: str, options: Sequence[Option]) -> str:
    known = [*_takes_value(options), "help", "version"]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f"unknown flag --{name}" + (f", did you mean --{close[0]}?" if close else "")


def _without_effect(words: CommandLine, options: Sequence[Option]) -> list[str]:
    taken = {option.flag.name for option in options}
    warnings = []
    for name, value in words.flags:
        if name in taken:
            continue
        accepted = IGNORED_FLAGS.get(name)
        if accepted is None:
            warnings.append(f"--{name} has no effect here: it belongs to another service")
        elif value not in accepted.silent_values:
            effect = "is ignored" if accepted.always_warns else "has no effect"
            warnings.append(f"--{name}={value} {effect}: {accepted.why}")
    return warnings


def _cloud_config(path: str, mistakes: list[str]) -> CloudConfig:
    if not path:
        return CloudConfig()
    found = parse_config_file(read_config_file(Path(path)), Path(path))
    if isinstance(found, CloudConfig):
        return found
    mistakes += [f"--{CLOUD_CONFIG.name}: {mistake}" for mistake in found.mistakes]
    return found.read or CloudConfig()  # only to find further mistakes; nothing runs with it


def _about_file(config: CloudConfig, path: str) -> list[str]:
    return [f"--{CLOUD_CONFIG.name}: {finding.format(path)}" for finding in config.warnings]


def _collect_messages(struct: Any, what: str) -> tuple[str, ...]:
    method = getattr(struct, what, None)
    messages: tuple[str, ...] = method() if method else ()
    return messages
