"""Reads YAML nodes into values by the table of keys, and reports every mistake with its line.

Types are those of the reference's decoder (yaml.v3). Any scalar is a text as written (`yes`, `1.10`). An
empty value in a mapping is the empty text; an empty item of a list is ignored.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
import yaml

from libs.common.cloud_config.file_keys import FileKey
from libs.common.cloud_config.findings import Findings, suggest_name, truncate_line
from libs.common.cloud_config.model import RuleEntry
from libs.common.cloud_config.value_parsers import PARSERS, find_fact_problem

_TAG: Final = "tag:yaml.org,2002:"
_TEXT_TAGS: Final = frozenset(
    _TAG + t for t in ("str", "int", "float", "bool", "timestamp", "value", "merge")
)
_NULL: Final = _TAG + "null"
_MERGE: Final = _TAG + "merge"
# yaml.v3 accepts the booleans of YAML 1.1, quoted or not.
_WORDS: Final = {"y": True, "yes": True, "on": True, "n": False, "no": False, "off": False}
_PLAIN: Final = {"true": True, "false": False}
MAX_YAML_NODES: Final = 200_000  # per file, with its aliases expanded


ValueT = TypeVar("ValueT")


class FileTooLarge(Exception):
    """The file has too many values."""


class ParsedMapping(msgspec.Struct, frozen=True):
    """A mapping of the file: its values by the standard spelling of their keys."""

    values: dict[str, Any]
    path: str
    line: int
    index: int = 0  # in its list


class Located(msgspec.Struct, Generic[ValueT], frozen=True):
    """A value and its position; None if it is invalid, which is reported already."""

    value: ValueT | None
    line: int
    path: str


class MappingReader:
    """Reads one file, and adds mistakes, warnings and differences to its findings."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._nodes = 0

    def mapping(self, node: yaml.Node, keys: Sequence[FileKey], path: str, index: int = 0) -> ParsedMapping:
        """Read a mapping of known keys."""
        values: dict[str, Any] = {}
        item = ParsedMapping(values, path, line_of(node), index)
        proper = {key.name.lower(): key for key in keys}
        spelled: dict[str, yaml.Node] = {}
        for name_node, value_node in self._pairs(node, path):
            written = self._key(name_node, path)
            key = proper.get(written.lower()) if written is not None else None
            if key is None:
                if written is not None:
                    self._reject(name_node, path, _unknown(written, keys))
            elif key.name in spelled:
                self._reject(name_node, _below(path, key.name), "is duplicated")
            else:
                spelled[key.name] = value_node
                if written != key.name:
                    self._other_spelling(name_node, _below(path, key.name))
                value = self._value(value_node, key, _below(path, key.name))
                if value is not None:
                    values[key.name] = value
        for key in keys if isinstance(node, yaml.MappingNode) else ():
            if key.is_required and (key.name not in spelled or _is_null(spelled[key.name])):
                self._findings.add_mistake(item.line, path, f"lacks {key.name}, which it must have")
        return item

    def _value(self, node: yaml.Node, key: FileKey, path: str) -> Any:
        if key.kind == "former":
            problem = key.help.replace("Without effect", "has no effect").rstrip(".")
            self._findings.add_warning(line_of(node), path, problem)
            return None
        if _is_null(node):
            return None
        match key.kind:
            case "text" | "operator" | "label key" | "label value":
                return self._parsed(node, key, path)
            case "fact key":
                fact = self._parsed(node, key, path)
                if fact is not None and (problem := find_fact_problem(fact)):
                    self._findings.add_warning(line_of(node), path, problem, is_unknown_fact=True)
                return fact
            case "boolean":
                return self._boolean(node, path)
            case "name" | "number" | "controller":
                return self._located(node, key, path)
            case "templates":
                return self._templates(node, path)
            case "mapping":
                return self.mapping(node, key.keys, path)
            case _:
                return self._list(node, key, path)

    def _list(self, node: yaml.Node, key: FileKey, path: str) -> tuple[Any, ...]:
        if key.requires_one and isinstance(node, yaml.SequenceNode) and all(map(_is_null, node.value)):
            what = (
                "network" if key.kind.endswith("networks") else "entry: remove the key if it has no meaning"
            )
            self._reject(node, path, f"must have at least one {what}")
        if key.kind == "list":
            return tuple(self.mapping(item, key.keys, at, n) for n, item, at in self._items(node, path))
        read = self._parsed if key.kind == "texts" else self._located
        found = [read(item, key, at) for _, item, at in self._items(node, path)]
        return tuple(each for each in found if each is not None)

    def _templates(self, node: yaml.Node, path: str) -> tuple[RuleEntry, ...]:
        entries: dict[str, RuleEntry] = {}
        for name_node, value_node in self._pairs(node, path):
            name = self._key(name_node, path)
            if name is None:
                continue
            at = f'{path}["{truncate_line(name)}"]'
            if name in entries:
                self._reject(name_node, at, "is duplicated")
                continue
            text = "" if _is_null(value_node) else self._text(value_node, at)
            entries[name] = RuleEntry(name, text or "", line_of(name_node))
        return tuple(entries.values())

    def _text(self, node: yaml.Node, path: str) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._reject(node, path, f"is {_node_kind(node)}, not a text")
        elif node.tag not in _TEXT_TAGS:
            self._reject(node, path, f"is not a plain text: it has the tag {truncate_line(node.tag)}")
        else:
            return str(node.value)
        return None

    def _parsed(self, node: yaml.Node, key: FileKey, path: str) -> Any:
        text = self._text(node, path)
        if text is None or key.kind not in PARSERS:
            return text
        try:
            return PARSERS[key.kind](text, key)
        except ValueError as error:
            self._reject(node, path, f'is "{truncate_line(text)}", {error}')
            return None

    def _located(self, node: yaml.Node, key: FileKey, path: str) -> Located[Any]:
        return Located(self._parsed(node, key, path), line_of(node), path)

    def _boolean(self, node: yaml.Node, path: str) -> bool | None:
        if isinstance(node, yaml.ScalarNode):
            word = node.value.lower()
            is_plain = node.tag == _TAG + "bool"
            value = _WORDS.get(word, _PLAIN.get(word) if is_plain else None)
            if value is not None:
                return value
            quotes = ", without quotes" if word in _PLAIN else ""
            self._reject(node, path, f'is "{truncate_line(node.value)}", not true or false{quotes}')
        else:
            self._reject(node, path, f"is {_node_kind(node)}, not true or false")
        return None

    def _items(self, node: yaml.Node, path: str) -> Iterator[tuple[int, yaml.Node, str]]:
        """Yield the items of a list with index and path."""
        self._count()
        if not isinstance(node, yaml.SequenceNode):
            self._reject(node, path, f"is {_node_kind(node)}, not a list")
            return
        for place, item in enumerate(node.value):
            self._count()
            if _is_null(item):
                self._findings.add_warning(line_of(item), f"{path}[{place}]", "is empty and ignored")
            else:
                yield place, item, f"{path}[{place}]"

    def _pairs(self, node: yaml.Node, path: str) -> list[tuple[yaml.Node, yaml.Node]]:
        """Return the entries of a mapping; merged ones (`<<`) only for keys that it lacks."""
        self._count()
        if not isinstance(node, yaml.MappingNode):
            self._reject(node, path, f"is {_node_kind(node)}, not a mapping of keys to values")
            return []
        own, merged = [], []
        for name, value in node.value:
            self._count()
            if name.tag == _MERGE:
                merged += self._merged(value, path)
            else:
                own.append((name, value))
        taken = {str(name.value) for name, _ in own if isinstance(name, yaml.ScalarNode)}
        for name, value in merged:
            if isinstance(name, yaml.ScalarNode) and str(name.value) in taken:
                continue
            taken.add(str(name.value))
            own.append((name, value))
        return own

    def _merged(self, node: yaml.Node, path: str) -> list[tuple[yaml.Node, yaml.Node]]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(source, yaml.MappingNode) for source in sources):
            self._reject(node, path, "merges (<<) something other than a mapping or a list of mappings")
            return []
        return [pair for source in sources for pair in self._pairs(source, path)]

    def _key(self, node: yaml.Node, path: str) -> str | None:
        if isinstance(node, yaml.ScalarNode) and node.tag in _TEXT_TAGS:
            return str(node.value)
        self._reject(node, path, "has a key that is not a plain text")
        return None

    def _reject(self, node: yaml.Node, path: str, problem: str) -> None:
        self._findings.add_mistake(line_of(node), path, problem)

    def _other_spelling(self, node: yaml.Node, path: str) -> None:
        message = f"is written {truncate_line(str(node.value))}, a spelling that the reference ignores"
        self._findings.add_difference(line_of(node), path, message)

    def _count(self) -> None:
        self._nodes += 1
        if self._nodes > MAX_YAML_NODES:
            raise FileTooLarge


def line_of(node: yaml.Node) -> int:
    """Return the first line of a node, from 1."""
    return int(node.start_mark.line) + 1


def _unknown(written: str, keys: Sequence[FileKey]) -> str:
    known = [key.name for key in keys if key.kind != "former"]
    return f'has no key "{truncate_line(written)}", only {", ".join(known)}{suggest_name(written, known)}'


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _NULL


def _node_kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    return "a list" if isinstance(node, yaml.SequenceNode) else f'"{truncate_line(str(node.value))}"'
