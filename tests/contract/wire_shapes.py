"""The JSON shape of a msgspec type without any Python name, and a sample that has every key."""

from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import inspect

_PLAIN = {
    inspect.StrType: "string",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "boolean",
    inspect.BytesType: "base64",
    inspect.NoneType: "null",
    inspect.AnyType: "anything",
}
_SAMPLE_TIME = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def shape_of(kind: inspect.Type) -> Any:
    """The JSON shape: a word for a plain value, a dictionary for everything else."""
    match kind:
        case inspect.StructType():
            return {"object": {field.encode_name: _field(field) for field in kind.fields}} | _options(kind)
        case inspect.DictType():
            return {"map to": shape_of(kind.value_type)}
        case inspect.VarTupleType() | inspect.ListType():
            return {"list of": shape_of(kind.item_type)}
        case inspect.UnionType():
            return {"one of": [shape_of(each) for each in kind.types]}
        case inspect.LiteralType():
            return {"values": sorted(kind.values)}
        case inspect.EnumType():
            return {"values": sorted(each.value for each in kind.cls)}
        case inspect.DateTimeType():
            return "time with offset" if kind.tz else "time"
        case inspect.Metadata():
            return shape_of(kind.type)
        case _:
            return _PLAIN[type(kind)]


def sample_of(kind: inspect.Type) -> Any:
    """JSON types in which no key has its default."""
    match kind:
        case inspect.StructType():
            tag = {kind.tag_field: kind.tag} if kind.tag_field else {}
            return tag | {field.encode_name: sample_of(field.type) for field in kind.fields}
        case inspect.DictType():
            return {"key": sample_of(kind.value_type)}
        case inspect.VarTupleType() | inspect.ListType():
            return [sample_of(kind.item_type)]
        case inspect.UnionType():
            return sample_of(next(each for each in kind.types if not isinstance(each, inspect.NoneType)))
        case inspect.LiteralType():
            return max(kind.values, key=str)
        case inspect.DateTimeType():
            return _SAMPLE_TIME.isoformat().replace("+00:00", "Z")
        case inspect.Metadata():
            return sample_of(kind.type)
        case inspect.BoolType():
            return True
        case inspect.BytesType():
            return "Ynl0ZXM="
        case _:
            return 7 if isinstance(kind, inspect.IntType | inspect.FloatType) else "text"


def _field(field: inspect.Field) -> Any:
    if field.required:
        return {"required": shape_of(field.type)}
    made = field.default_factory is not msgspec.NODEFAULT
    default = field.default_factory() if made else field.default
    return {"default": msgspec.to_builtins(default), "type": shape_of(field.type)}


def _options(kind: inspect.StructType) -> dict[str, Any]:
    config = kind.cls.__struct_config__
    options: dict[str, Any] = {"defaults are written": not config.omit_defaults}
    if config.forbid_unknown_fields:
        options["unknown keys are refused"] = True
    if config.array_like:
        options["written as a list"] = True
    if kind.tag_field:
        options["tag"] = {kind.tag_field: kind.tag}
    return options
