"""Parses YAML from untrusted files, and rejects texts that would break the parser.

libyaml's binding builds nested nodes by recursion in C, which ends the process where Python would raise.
Nested merges of aliases can make a file of a kilobyte use all memory.
"""

from typing import Any, Final, TypeVar

import msgspec
import yaml

MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 64
MAX_ALIASES: Final = 64
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

T = TypeVar("T")


class YamlError(Exception):
    """The text is invalid, with the reason and the line in one line; `line` is 0 if unknown."""

    def __init__(self, problem: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {problem}" if line else problem)
        self.problem = problem
        self.line = line


def read_yaml(text: bytes, kind: type[T]) -> T:
    """Parse the document as `kind`. Raises YamlError and no other exception."""
    reject_bombs(text)
    try:
        return msgspec.yaml.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise YamlError(_one_line(error)) from error
    except Exception as error:  # the library raises many types, such as ValueError for `2024-13-45`
        raise YamlError(f"a value is not what it looks like ({type(error).__name__})") from error


def read_yaml_documents(text: bytes) -> list[Any]:
    """Parse every document of the stream. Raises YamlError and no other exception."""
    reject_bombs(text)
    try:
        return list(yaml.load_all(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        raise _invalid(error) from None
    except Exception as error:  # as in read_yaml
        raise YamlError(f"a value is not what it looks like ({type(error).__name__})") from error


def compose_yaml(text: bytes | str) -> yaml.Node | None:
    """Return the tree of the only document, None for an empty text. Raises YamlError."""
    reject_long(text)  # before decoding: a cut-off text may have few enough characters
    try:
        plain = text.decode() if isinstance(text, bytes) else text
        reject_bombs(plain)
        # The loader recurses in C: use it only after `reject_bombs` has counted the levels.
        root = yaml.compose(plain, Loader=_LOADER)
    except UnicodeDecodeError:
        raise YamlError("it is not UTF-8") from None
    except yaml.YAMLError as error:
        raise _invalid(error) from None
    is_empty = isinstance(root, yaml.ScalarNode) and root.tag == "tag:yaml.org,2002:null"
    return None if is_empty else root


def reject_bombs(text: bytes | str) -> None:
    """Raise YamlError if the text is invalid, too long, too deep, or grows when its aliases are expanded."""
    reject_long(text)
    level = aliases = 0
    anchored_at = 0  # level of the outermost anchored collection around the event; 0 = none
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
    """Raise YamlError if the text is too long."""
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
