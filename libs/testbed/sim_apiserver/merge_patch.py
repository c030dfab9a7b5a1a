"""RFC 7396, and the strategic merge patch for the fields of Nodes and Pods that are patched with it."""

from __future__ import annotations

from typing import Any, Final

from libs.testbed.sim_apiserver.refusals import Refusal, bad_request, not_simulated

# Lists of Nodes and Pods, and their merge keys; None: the patch replaces the list. Others are not simulated.
_LISTS: Final[dict[str, str | None]] = {
    "/spec/taints": None,
    "/status/conditions": "type",
    "/status/addresses": "type",
    "/status/containerStatuses": None,
}
_DIRECTIVE: Final = "$patch"


def apply_merge_patch(document: Any, patch: Any) -> Any:
    """Return the document after a merge patch (RFC 7396). Raises Refusal unless the patch is an object."""
    return _merge_value(document, _require_object(patch))


def apply_strategic_merge_patch(document: Any, patch: Any) -> Any:
    """Return the Node after a strategic merge patch. Raises Refusal if it is not simulated."""
    return _merge_map(document, _require_object(patch), "")


def _require_object(patch: Any) -> dict[str, Any]:
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: a merge patch is an object")
    return patch


def _merge_value(current: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(current) if isinstance(current, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merge_value(result.get(key), value)
    return result


def _merge_map(current: Any, patch: dict[str, Any], path: str) -> dict[str, Any]:
    result = dict(current) if isinstance(current, dict) else {}
    for key, value in patch.items():
        where = f"{path}/{key}"
        if key.startswith("$"):
            raise not_simulated(f"strategic merge directive at {where}", "patch")
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = _merge_map(result.get(key), value, where)
        elif isinstance(value, list):
            result[key] = _merge_list(result.get(key) or [], value, where)
        else:
            result[key] = value
    return result


def _merge_list(current: list[Any], patch: list[Any], path: str) -> list[Any]:
    if path not in _LISTS:
        raise not_simulated(f"strategic merge of the list {path}", "patch")
    directives = [item for item in patch if isinstance(item, dict) and set(item) == {_DIRECTIVE}]
    items = [item for item in patch if item not in directives]
    merge_key = _LISTS[path]
    if directives:
        if any(item[_DIRECTIVE] != "replace" for item in directives):
            raise not_simulated(f"strategic merge directives {directives} of {path}", "patch")
        return items
    return items if merge_key is None else _merge_by_key(current, items, merge_key)


def _merge_by_key(current: list[Any], items: list[Any], merge_key: str) -> list[Any]:
    """Merge in the real server's order: patched elements in the patch's order, the others at their place."""
    result = list(current)
    for item in items:
        if not isinstance(item, dict) or merge_key not in item:
            raise Refusal(500, "", f"map: {item} does not contain declared merge key: {merge_key}")
        at = next((i for i, old in enumerate(result) if old[merge_key] == item[merge_key]), None)
        if _DIRECTIVE in item:
            if item[_DIRECTIVE] != "delete":
                raise not_simulated(f"strategic merge directive {item[_DIRECTIVE]}", "patch")
            result = [old for old in result if old[merge_key] != item[merge_key]]
        elif at is None:
            result.append(item)
        else:
            result[at] = {key: value for key, value in (result[at] | item).items() if value is not None}
    named = [item[merge_key] for item in items]
    left = sorted(
        (one for one in result if one[merge_key] in named), key=lambda one: named.index(one[merge_key])
    )
    right = [one for one in result if one[merge_key] not in named]
    return _interleave(left, right, [old[merge_key] for old in current], merge_key)


def _interleave(left: list[Any], right: list[Any], server: list[str], merge_key: str) -> list[Any]:
    result: list[Any] = []
    while left and right:
        mine, theirs = left[0][merge_key], right[0][merge_key]
        after = mine in server and theirs in server and server.index(theirs) < server.index(mine)
        result.append((right if after else left).pop(0))
    return [*result, *left, *right]
