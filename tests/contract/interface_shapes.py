"""Values, types and flags reduced to the part that a user or another program can see."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import PurePath
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import inspect

from libs.common.settings.flag_values import required_type
from libs.common.settings.read_settings import Option

_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}

_NAMES_OF_KINDS: dict[type[inspect.Type], str] = {
    inspect.StrType: "string",
    inspect.BoolType: "boolean",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.NoneType: "null",
}


def key_types(documents: Iterable[Any]) -> dict[str, list[str]]:
    """Map each key path of the JSON documents to the types of its values.

    `[]` is each item of a list, `<key>` a label or annotation.
    """
    found: dict[str, set[str]] = {}
    for document in documents:
        _add(found, "", document)
    return {path: sorted(types) for path, types in found.items()}


def _add(found: dict[str, set[str]], path: str, value: Any) -> None:
    types = found.setdefault(path or ".", set())
    if isinstance(value, dict):
        types.add("object")
        for key, inner in value.items():
            _add(found, f"{path}.{'<key>' if '/' in key else key}", inner)
    elif isinstance(value, list | tuple):
        types.add("array")
        for inner in value:
            _add(found, f"{path}[]", inner)
    else:
        types.add(_NAMES[type(value)])


def plain(value: Any) -> Any:
    """Reduce a default to JSON."""
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, PurePath | datetime) else value


def flag_entries(options: Iterable[Option]) -> dict[str, Any]:
    """Describe every spelling on its own; "also" lists its other spellings.

    A new name for a flag is a new entry, and one more line in the entry of the old name.
    """
    entries = {}
    for option in options:
        flag = option.flag
        names = [f"--{name}" for name in flag.spellings]
        for name in names or [flag.config or flag.env]:
            entries[name] = _entry(option, [other for other in names if other != name])
    return entries


def _entry(option: Option, also: list[str]) -> dict[str, Any]:
    flag = option.flag
    described = {
        "type": _value_type(option),
        "default": "required" if option.default is msgspec.NODEFAULT else plain(option.default),
        "environment": flag.env,
        "key in --cloud-config": flag.config,
        "minimum": flag.at_least,
        "maximum": flag.at_most,
        "also": sorted(also),
    }
    return {key: value for key, value in described.items() if key == "default" or value not in ("", None, [])}


def _value_type(option: Option) -> Any:
    inner, _ = required_type(option.type)
    if get_origin(inner) is Literal:
        return list(get_args(inner))
    if option.is_duration:
        return "duration, default in seconds"
    if inner == tuple[str, ...]:
        return "list"
    return "path" if issubclass(inner, PurePath) else _NAMES[inner]


def domain(literal: Any) -> list[Any]:
    """List the values of a `Literal` type."""
    return sorted(get_args(literal))


def decoded_shape(kind: Any) -> Any:
    """Describe the JSON that decodes as that type: key, type and default of each field, tags of unions."""
    return _shape(inspect.type_info(kind), ())


def _shape(kind: Any, within: tuple[type, ...]) -> Any:
    match kind:
        case inspect.StructType():
            return _struct(kind, within)
        case inspect.UnionType() if within and (tags := _tags(kind)):
            return {"tagged": tags}
        case inspect.UnionType():
            return {"one of": [_shape(each, within) for each in kind.types]}
        case inspect.VarTupleType() | inspect.ListType():
            return {"array of": _shape(kind.item_type, within)}
        case inspect.DictType():
            return {"object of": _shape(kind.value_type, within)}
        case inspect.LiteralType():
            return {"enum": sorted(kind.values)}
        case inspect.CustomType() | inspect.Metadata():
            raise TypeError(f"{kind} has no JSON shape")
    return _NAMES_OF_KINDS.get(type(kind)) or type(kind).__name__.removesuffix("Type").lower()


def _tags(kind: inspect.UnionType) -> list[Any]:
    """Tags of the events inside another document: the golden samples have their keys."""
    return sorted(each.tag for each in kind.types if isinstance(each, inspect.StructType) and each.tag)


def _struct(kind: inspect.StructType, within: tuple[type, ...]) -> Any:
    if kind.cls in within:
        return "recursive"
    fields = {field.encode_name: _field(field, (*within, kind.cls)) for field in kind.fields}
    return {"tag": kind.tag, "fields": fields} if kind.tag is not None else {"fields": fields}


def _field(field: inspect.Field, within: tuple[type, ...]) -> Any:
    shape: dict[str, Any] = {"type": _shape(field.type, within)}
    if field.required:
        return shape | {"required": True}
    default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return shape | {"default": msgspec.to_builtins(default)}


def without(document: Any, *keys: str) -> Any:
    """Drop those keys everywhere, unless they are names of properties."""
    if isinstance(document, list):
        return [without(each, *keys) for each in document]
    if not isinstance(document, Mapping):
        return document
    kept = {key: value for key, value in document.items() if key not in keys or isinstance(value, Mapping)}
    return {key: without(value, *keys) for key, value in kept.items()}
