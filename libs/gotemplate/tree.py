"""The nodes of a parsed template."""

import msgspec

from libs.gotemplate.values import Value


class Node(msgspec.Struct, frozen=True):
    """A node with its start and end in the source, in characters."""

    start: int
    end: int


class Dot(Node, frozen=True):
    """`.`"""


class Variable(Node, frozen=True):
    """`$x`, with its dollar sign."""

    name: str


class Constant(Node, frozen=True):
    """`nil`, `true`, a number or a string."""

    value: Value


class Identifier(Node, frozen=True):
    """A function's name."""

    name: str


class Path(Node, frozen=True):
    """Fields of a value: `.A.B`, `$x.A`, `(pipeline).A`."""

    base: "Term"
    names: tuple[str, ...]


class Command(Node, frozen=True):
    """An operand and its arguments."""

    arguments: tuple["Operand", ...]


class Pipe(Node, frozen=True):
    """`$a, $b := command | command`"""

    commands: tuple[Command, ...]
    declared: tuple[str, ...]
    assigns: bool  # = and not :=


Term = Dot | Variable | Constant | Identifier | Pipe
Operand = Term | Path


class Text(Node, frozen=True):
    """The text outside actions."""

    value: bytes


class Action(Node, frozen=True):
    """`{{pipeline}}`"""

    pipe: Pipe


class Branch(msgspec.Struct, frozen=True):
    """The condition and body of an `if`, `with` or `range`, or of an `else if` or `else with`."""

    pipe: Pipe
    body: tuple["Item", ...]


class Block(Node, frozen=True):
    """`if`, `with` or `range`; branches are flat: a hundred `else if` do not nest a hundred levels."""

    keyword: str
    branches: tuple[Branch, ...]
    otherwise: tuple["Item", ...]


class Call(Node, frozen=True):
    """`{{template "name" pipeline}}`; also the use of a `block`."""

    name: str
    pipe: Pipe | None


class Leave(Node, frozen=True):
    """`{{break}}` or `{{continue}}`"""

    keyword: str


Item = Text | Action | Block | Call | Leave
Items = tuple[Item, ...]


def is_blank(items: Items) -> bool:
    """Return whether the items contain only space; such a template may be redefined."""
    return all(isinstance(item, Text) and not item.value.strip() for item in items)
