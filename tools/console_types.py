"""`python -m tools.console_types`: writes the TypeScript types of what the console sends to its page."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, get_args

from msgspec import inspect

from services.console.core.cloud_rows import BalancerState
from services.console.core.console_state import Frame
from services.console.core.node_detail import NodeDetail
from services.console.core.node_record import InstanceState, NodeState, RequestState
from services.console.core.overview import Health

PATH: Final = Path(__file__).parents[1] / "services" / "console" / "web" / "generated" / "state.ts"
_HEADER: Final = "// Written by `make console-types` from services/console/core. Do not edit.\n"
_UNIONS: Final = {  # in the order of a reader
    "NodeState": get_args(NodeState),
    "InstanceState": get_args(InstanceState),
    "RequestState": get_args(RequestState),
    "BalancerState": get_args(BalancerState),
    "Health": get_args(Health),
}
_TYPES: Final[dict[type[inspect.Type], Callable[[Any], str]]] = {
    inspect.StrType: lambda kind: "string",
    inspect.DateTimeType: lambda kind: "string",
    inspect.IntType: lambda kind: "number",
    inspect.FloatType: lambda kind: "number",
    inspect.BoolType: lambda kind: "boolean",
    inspect.NoneType: lambda kind: "null",
    inspect.StructType: lambda kind: str(kind.cls.__name__),
    inspect.LiteralType: lambda kind: _name_union(kind.values),
    inspect.ListType: lambda kind: f"{_write(kind.item_type)}[]",
    inspect.VarTupleType: lambda kind: f"{_write(kind.item_type)}[]",
    inspect.TupleType: lambda kind: f"[{', '.join(map(_write, kind.item_types))}]",
    inspect.DictType: lambda kind: f"Record<{_write(kind.key_type)}, {_write(kind.value_type)}>",
    inspect.UnionType: lambda kind: " | ".join(filter(None, map(_write, kind.types))),
}


def render_types() -> str:
    """Return the content of the file: the unions, then an interface for each struct."""
    unions = [f"export type {name} = {_quote(values)};\n" for name, values in _UNIONS.items()]
    structs: dict[str, inspect.StructType] = {}
    for root in inspect.multi_type_info([Frame, NodeDetail]):
        structs |= {each.cls.__name__: each for each in _list_structs(root)}
    return _HEADER + "\n" + "".join(unions) + "".join(map(_write_struct, structs.values()))


def _list_structs(kind: inspect.Type) -> Iterator[inspect.StructType]:
    """Return the structs of a type, each after those that it contains."""
    if isinstance(kind, inspect.StructType):
        for field in kind.fields:
            yield from _list_structs(field.type)
        yield kind
    for part in (*getattr(kind, "types", ()), getattr(kind, "item_type", None)):
        if part is not None:
            yield from _list_structs(part)


def _write_struct(kind: inspect.StructType) -> str:
    omits = kind.cls.__struct_config__.omit_defaults
    lines = [
        f"  {field.encode_name}{'?' if omits and not field.required else ''}: {_write(field.type)};\n"
        for field in kind.fields
    ]
    return f"\nexport interface {kind.cls.__name__} {{\n{''.join(lines)}}}\n"


def _write(kind: inspect.Type) -> str:
    return _TYPES[type(kind)](kind)


def _name_union(values: tuple[Any, ...]) -> str:
    values = tuple(each for each in values if each)  # "" is a default, which is omitted
    named = (name for name, of in _UNIONS.items() if set(of) == set(values))
    return next(named, "") or _quote(values)


def _quote(values: tuple[Any, ...]) -> str:
    return " | ".join(f'"{each}"' for each in values)


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(render_types())
