"""ConfigMaps: text and bytes by key; writes may omit the resourceVersion."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType, field

from libs.testbed.sim_apiserver.objects import Meta, ResourceKind, validate_metadata
from libs.testbed.sim_apiserver.refusals import Cause, forbidden_value, invalid_value, too_long_value

_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_LIMIT: Final = 1024 * 1024  # bytes of all values


class ConfigMap(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """A ConfigMap on the wire."""

    metadata: Meta = field(default_factory=Meta)
    immutable: bool | UnsetType = UNSET
    data: dict[str, str] = {}
    binary_data: dict[str, bytes] = {}


def validate_map(new: ConfigMap, old: ConfigMap | None) -> list[Cause]:
    """Return the causes of an invalid ConfigMap."""
    causes = validate_metadata(new.metadata, old.metadata if old else None)
    for name, keys in (("data", new.data.keys()), ("binaryData", new.binary_data.keys())):
        for key in keys:
            if not _KEY.fullmatch(key) or key == "." or key.startswith(".."):
                why = "a valid config key consists of alphanumeric characters, -_."
                causes.append(invalid_value(key, why, f"{name}[{key}]"))
    for key in new.data.keys() & new.binary_data.keys():
        causes.append(invalid_value(key, "duplicate of key present in binaryData", f"data[{key}]"))
    size = sum(len(text.encode()) for text in new.data.values()) + sum(map(len, new.binary_data.values()))
    if size > _LIMIT:
        causes.append(too_long_value(_LIMIT, "[]"))
    if old is not None and old.immutable is True:
        for name, before, after in (
            ("immutable", old.immutable, new.immutable),
            ("data", old.data, new.data),
            ("binaryData", old.binary_data, new.binary_data),
        ):
            if before != after:
                causes.append(forbidden_value("field is immutable when `immutable` is set", name))
    return causes


CONFIG_MAPS: Final = ResourceKind(
    "configmaps",
    "ConfigMap",
    ConfigMap,
    short_names=("cm",),
    is_namespaced=True,
    validate=validate_map,
)
