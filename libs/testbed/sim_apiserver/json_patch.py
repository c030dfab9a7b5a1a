"""RFC 6902 as the API server applies it: `test` for null passes if the key is absent."""

from __future__ import annotations

from typing import Any

from libs.testbed.sim_apiserver.refusals import bad_request, not_simulated, patch_failed

_ABSENT = object()


def apply_json_patch(document: Any, operations: Any) -> Any:
    """Change `document` in place and return it. Raises Refusal; the document may then be half changed."""
    if not isinstance(operations, list) or not all(isinstance(one, dict) for one in operations):
        raise bad_request("error decoding patch: a JSON Patch is a list of operations")
    for operation in operations:
        _apply_operation(document, operation)
    return document


def _apply_operation(document: Any, operation: dict[str, Any]) -> None:
    kind, path, value = operation.get("op"), operation.get("path"), operation.get("value")
    if kind in {"move", "copy"}:
        raise not_simulated(f"JSON Patch operation {kind}", "patch")
    if kind not in {"add", "replace", "remove", "test"} or not isinstance(path, str):
        raise patch_failed()
    if not path.startswith("/"):
        raise patch_failed()
    *parents, last = [step.replace("~1", "/").replace("~0", "~") for step in path[1:].split("/")]
    holder = document
    for step in parents:
        holder = _get_child(holder, step)
    if isinstance(holder, dict):
        _apply_to_map(holder, last, kind, value)
    elif isinstance(holder, list):
        _apply_to_list(holder, last, kind, value)
    else:
        raise patch_failed()


def _get_child(holder: Any, step: str) -> Any:
    if isinstance(holder, dict) and step in holder:
        return holder[step]
    if isinstance(holder, list):
        return holder[_parse_index(holder, step, len(holder) - 1)]
    raise patch_failed()


def _apply_to_map(holder: dict[str, Any], key: str, kind: str, value: Any) -> None:
    match kind:
        case "test":
            found = holder.get(key, _ABSENT)
            if found != value and not (found is _ABSENT and value is None):
                raise patch_failed()
        case "remove":
            if holder.pop(key, _ABSENT) is _ABSENT:
                raise patch_failed()
        case _:
            holder[key] = value


def _apply_to_list(holder: list[Any], step: str, kind: str, value: Any) -> None:
    if kind == "add":
        holder.insert(len(holder) if step == "-" else _parse_index(holder, step, len(holder)), value)
        return
    at = _parse_index(holder, step, len(holder) - 1)
    if kind == "replace":
        holder[at] = value
    elif kind == "remove":
        del holder[at]
    elif holder[at] != value:
        raise patch_failed()


def _parse_index(holder: list[Any], step: str, last: int) -> int:
    if not (step.isascii() and step.isdigit()) or int(step) > last:
        raise patch_failed()
    return int(step)
