"""A small RFC 6902 applier with the API server's reading of `test` against null: what a patch would do."""

import copy
from typing import Any


class PatchFailed(Exception):
    """The patch as a whole does not apply, as the API server's 422."""


def apply(document: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """The document after the patch; empty maps and lists of metadata and spec vanish, as on the server."""
    result = copy.deepcopy(document)
    for operation in patch:
        _apply_one(result, operation)
    for section in ("metadata", "spec"):
        for key in [k for k, v in result.get(section, {}).items() if v in ({}, [])]:
            del result[section][key]
    return result


def _apply_one(document: dict[str, Any], operation: dict[str, Any]) -> None:
    *parents, last = [
        t.replace("~1", "/").replace("~0", "~") for t in operation["path"].lstrip("/").split("/")
    ]
    holder: Any = document
    for token in parents:
        try:
            holder = holder[int(token)] if isinstance(holder, list) else holder[token]
        except (KeyError, IndexError, ValueError) as error:
            raise PatchFailed(f"{operation['path']}: no {token}") from error
    if isinstance(holder, list):
        _in_list(holder, last, operation)
    else:
        _in_map(holder, last, operation)


def _in_list(holder: list[Any], last: str, operation: dict[str, Any]) -> None:
    if operation["op"] == "add" and last == "-":
        holder.append(operation["value"])
        return
    at = int(last)
    if at >= len(holder):
        raise PatchFailed(f"{operation['path']}: no such element")
    match operation["op"]:
        case "test" if holder[at] != operation["value"]:
            raise PatchFailed(f"{operation['path']} is {holder[at]!r}")
        case "replace":
            holder[at] = operation["value"]
        case "remove":
            del holder[at]


def _in_map(holder: dict[str, Any], last: str, operation: dict[str, Any]) -> None:
    match operation["op"]:
        case "test" if holder.get(last) != operation["value"]:
            raise PatchFailed(f"{operation['path']} is {holder.get(last)!r}")
        case "add" | "replace":
            holder[last] = operation["value"]
        case "remove":
            if last not in holder:
                raise PatchFailed(f"{operation['path']}: nothing to remove")
            del holder[last]
