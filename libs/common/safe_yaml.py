"""YAML from files that anybody may have written: what would break the parser is refused before it is built.

libyaml's binding composes nested nodes by recursion in C and ends the process where Python would raise; and
a merge of aliases of merges of aliases is a file of a kilobyte that takes all memory.
"""

from typing import Final, TypeVar

import msgspec
import yaml

MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 64
MAX_ALIASES: Final = 64
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

T = TypeVar("T")


class YamlError(Exception):
    """The text cannot be read; says why and where, in one line. `line` is 0 where it is not known."""

    def __init__(self, problem: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {problem}" if line else problem)
        self.problem = problem
        self.line = line


def read_yaml(text: bytes, kind: type[T]) -> T:
    """The document as `kind`. Raises YamlError and nothing else."""
    reject_bombs(text)
    try:
        return msgspec.yaml.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise YamlError(_one_line(error)) from error
    except Exception as error:  # the library raises whatever a value leads to: `2024-13-45` a ValueError
        raise YamlError(f"a value is not what it looks like ({type(error).__name__})") from error


def reject_bombs(text: bytes | str) -> None:
    """Raise YamlError if the text is no YAML, too long, too deep, or grows beyond its length when built."""
    reject_long(text)
    level = aliases = 0
    anchored_at = 0  # the level of the outermost anchored collection that we are in, 0 for none
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.CollectionStartEvent):
                level += 1
                if level > MAX_DEPTH:
                    raise YamlError(f"nested deeper than {MAX_DEPTH} levels", _line(event))
                anchored_at = anchored_at or (level if event.anchor else 0)
            elif isinstance(event, yaml.CollectionEndEvent):
                anchored_at = 0 if anchored_at == level else anchored_at
                level -= 1
            elif isinstance(event, yaml.AliasEvent):
                aliases += 1
                if anchored_at or aliases > MAX_ALIASES:
                    raise YamlError("an alias within an anchor, or too many of them", _line(event))
    except yaml.YAMLError as error:
        raise _invalid(error) from None
    except UnicodeError:
        raise YamlError("it is not UTF-8") from None


def reject_long(text: bytes | str) -> None:
    """Raise YamlError if nobody writes so much by hand."""
    if len(text) > MAX_BYTES:
        raise YamlError(f"it is longer than {MAX_BYTES} bytes")


def _line(event: yaml.Event) -> int:
    return int(event.start_mark.line) + 1


def _invalid(error: yaml.YAMLError) -> YamlError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return YamlError(f"not valid YAML: {problem}", mark.line + 1 if mark is not None else 0)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
