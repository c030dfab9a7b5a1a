"""The texts of a file that people read, with the line on which each begins. Pure.

Markdown and declared dashboards without code blocks and code spans; comments of other YAML, templates and
makefiles; comments and string literals of Python. An SQL or code fragment in a string is read like any other
text.
"""

import ast
import functools
import re
from collections.abc import Iterator

import msgspec

_FENCE = re.compile(r"^\s*(```|~~~)")
_CODE_SPAN = re.compile(r"`[^`\n]*`")
_HASH_COMMENT = re.compile(r"(?:^|\s)#\s?(.*)$")
# The first alternative that begins at a character wins, so a # inside a string begins no comment.
_STRING_OR_COMMENT = re.compile(
    r"""(?s:(?P<triple>\"{3}|'{3})(?:\\.|.)*?(?P=triple)|(?P<one>["'])(?:\\.|[^\\\n])*?(?P=one))|#[^\n]*"""
)
_TEMPLATE_COMMENT = re.compile(r"\{\{-?\s*/\*(.*?)\*/\s*-?\}\}", re.DOTALL)


class Passage(msgspec.Struct, frozen=True):
    """Running text and the number of its first line (from 1)."""

    line: int
    text: str


@functools.lru_cache(maxsize=1)  # names and texts of a file are read one after the other
def nodes_of(content: str) -> tuple[ast.AST, ...]:
    """All nodes of the syntax tree of a Python file, in the order of `ast.walk`, which takes longer."""
    nodes: list[ast.AST] = [ast.parse(content)]
    for node in nodes:  # grows meanwhile
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                nodes.append(value)
            elif isinstance(value, list):
                nodes += [item for item in value if isinstance(item, ast.AST)]
    return tuple(nodes)


def passages_of(name: str, content: str) -> Iterator[Passage]:
    """The passages of one file, chosen by the ending of its name; none for an ending that is not read."""
    if name.endswith(".md") or name.startswith("tools/dashboards/declarations/"):
        yield from _paragraphs(_without_code(content))
    elif name.endswith(".py"):
        yield from _python(content)
    elif name.endswith((".yaml", ".yml", ".mk", ".tpl")) or name == "Makefile":
        yield from _paragraphs(_comments(content))
        for comment in _TEMPLATE_COMMENT.finditer(content):
            yield Passage(content.count("\n", 0, comment.start()) + 1, comment.group(1))
    elif name.endswith("NOTES.txt"):
        yield from _paragraphs(content.splitlines())


def _without_code(content: str) -> list[str]:
    lines, in_code = [], False
    for line in content.splitlines():
        if _FENCE.match(line):
            in_code = not in_code
            lines.append("")
        else:
            lines.append("" if in_code else _CODE_SPAN.sub("`x`", line))
    return lines


def _comments(content: str) -> list[str]:
    return [found.group(1) if (found := _HASH_COMMENT.search(line)) else "" for line in content.splitlines()]


def _paragraphs(lines: list[str]) -> Iterator[Passage]:
    """Lines up to the next empty one are one passage, so that a phrase across a line break is found."""
    begun, together = 0, list[str]()
    for number, line in enumerate([*lines, ""], 1):
        if line.strip():
            begun = begun or number
            together.append(line)
        elif together:
            yield Passage(begun, "\n".join(together))
            begun, together = 0, []


def _python(content: str) -> Iterator[Passage]:
    yield from _paragraphs(_python_comments(content))
    for node in nodes_of(content):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Passage(node.lineno, _CODE_SPAN.sub("`x`", node.value))


def _python_comments(content: str) -> list[str]:
    """The comment of each line, "" for a line without one."""
    comments = [""] * (content.count("\n") + 1)
    line, end = 0, 0
    for found in _STRING_OR_COMMENT.finditer(content):
        if found[0].startswith("#"):
            line, end = line + content.count("\n", end, found.start()), found.start()
            comments[line] = found[0].lstrip("# ")
    return comments
