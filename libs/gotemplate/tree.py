"""The nodes of a parsed template. Each prints like Go's node, because errors quote it."""

import msgspec

from libs.gotemplate.numbers import Number


class Node(msgspec.Struct, frozen=True):
    """A node with its start in the source, in characters."""

    position: int


class Dot(Node, frozen=True):
    """`.`"""

    def __str__(self) -> str:
        return "."


class Nil(Node, frozen=True):
    """`nil`"""

    def __str__(self) -> str:
        return "nil"


class Bool(Node, frozen=True):
    """`true` or `false`"""

    value: bool

    def __str__(self) -> str:
        return "true" if self.value else "false"


class NumberConstant(Node, frozen=True):
    """`1`, `0x1F`, `'a'`, `1.5`"""

    text: str
    number: Number

    def __str__(self) -> str:
        return self.text


class String(Node, frozen=True):
    """A quoted or raw string."""

    quoted: str
    value: bytes

    def __str__(self) -> str:
        return self.quoted


class Field(Node, frozen=True):
    """`.A.B`"""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return "".join(f".{name}" for name in self.names)


class Variable(Node, frozen=True):
    """`$x.A`; the first name has its dollar sign."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(self.names)


class Identifier(Node, frozen=True):
    """A function's name."""

    name: str

    def __str__(self) -> str:
        return self.name


class Chain(Node, frozen=True):
    """`(pipeline).A.B`"""

    node: "Pipe | Identifier"
    names: tuple[str, ...]

    def __str__(self) -> str:
        inner = f"({self.node})" if isinstance(self.node, Pipe) else str(self.node)
        return inner + "".join(f".{name}" for name in self.names)


class Command(Node, frozen=True):
    """An operand and its arguments."""

    arguments: tuple["Operand", ...]

    def __str__(self) -> str:
        return " ".join(f"({a})" if isinstance(a, Pipe) else str(a) for a in self.arguments)


class Pipe(Node, frozen=True):
    """`$a, $b := command | command`"""

    commands: tuple[Command, ...]
    declared: tuple[str, ...] = ()
    assigns: bool = False  # = and not :=

    def __str__(self) -> str:
        commands = " | ".join(map(str, self.commands))
        sign = " = " if self.assigns else " := "
        return ", ".join(self.declared) + sign + commands if self.declared else commands


Operand = Dot | Nil | Bool | NumberConstant | String | Field | Variable | Identifier | Chain | Pipe


class Text(Node, frozen=True):
    """The text outside actions."""

    value: bytes

    def __str__(self) -> str:
        return ""


class Action(Node, frozen=True):
    """`{{pipeline}}`"""

    pipe: Pipe

    def __str__(self) -> str:
        return f"{{{{{self.pipe}}}}}"


class Branch(msgspec.Struct, frozen=True):
    """One `if` or `else if`, `with` or `else with`, with its condition and body."""

    pipe: Pipe
    body: tuple["Item", ...]


class If(Node, frozen=True):
    """`if` with its branches; they are flat, so that a hundred `else if` do not nest a hundred levels."""

    branches: tuple[Branch, ...]
    otherwise: tuple["Item", ...] = ()


class With(If, frozen=True):
    """Like `if`, but the value becomes dot."""


class Range(Node, frozen=True):
    """`range`, and `else` for an empty value."""

    pipe: Pipe
    body: tuple["Item", ...]
    otherwise: tuple["Item", ...] = ()


class Call(Node, frozen=True):
    """`{{template "name" pipeline}}`; also the use of a `block`."""

    quoted: str
    name: str
    pipe: Pipe | None

    def __str__(self) -> str:
        return f"{{{{template {self.quoted}{f' {self.pipe}' if self.pipe else ''}}}}}"


class Break(Node, frozen=True):
    """`{{break}}`"""


class Continue(Node, frozen=True):
    """`{{continue}}`"""


Item = Text | Action | If | With | Range | Call | Break | Continue
Items = tuple[Item, ...]


def is_blank(items: Items) -> bool:
    """Return whether the items contain only space; such a template may be redefined."""
    return all(isinstance(item, Text) and not item.value.strip() for item in items)
