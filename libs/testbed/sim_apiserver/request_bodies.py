"""Parses bodies and selectors; JSON Patch, merge patch, and strategic merge patch of some fields.

As the API server applies RFC 6902, a `test` for null passes if the key is absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from libs.testbed.sim_apiserver.api_request import ApiRequest
from libs.testbed.sim_apiserver.object_store import StoredObject
from libs.testbed.sim_apiserver.refusals import Refusal, bad_request, not_simulated, patch_failed
from libs.testbed.sim_apiserver.resource_kind import Document, ResourceKind


def parse_json(body: bytes) -> Any:
    """Decode JSON. Raises Refusal."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"json parse error: {error}") from error


def parse_object(kind: ResourceKind, body: bytes) -> Document:
    """Parse the object of a create or update. Raises Refusal."""
    document = parse_json(body)
    if not isinstance(document, dict):
        raise bad_request(f"the object provided is unrecognized (must be of type {kind.kind})")
    version, name = document.pop("apiVersion", kind.api_version), document.pop("kind", kind.kind)
    if (version, name) != (kind.api_version, kind.kind):
        raise bad_request(f'{name} in version "{version}" cannot be handled as a {kind.kind}')
    document.setdefault("metadata", {}).pop("managedFields", None)  # sent back by a client that updates
    return document


def make_selector(request: ApiRequest, kind: ResourceKind) -> Callable[[Document], bool]:
    """Return a predicate for fieldSelector and labelSelector. Raises Refusal."""
    fields = _parse_terms(request, "fieldSelector")
    for field in fields.keys() - set(kind.field_selectors):
        raise bad_request(f"field label not supported: {field}")
    labels = _parse_terms(request, "labelSelector")
    return lambda item: (
        all(_get_text(item, field) == value for field, value in fields.items())
        and labels.items() <= item["metadata"].get("labels", {}).items()
    )


def _get_text(item: Document, path: str) -> str:
    for step in path.split("."):
        item = item.get(step, {})
    return str(item or "")


def _parse_terms(asked: ApiRequest, name: str) -> dict[str, str]:
    """Return the terms of a selector; others than equality, and a field twice, are not simulated."""
    terms = [term.partition("=") for term in asked.query.get(name, "").split(",") if term]
    for field, equals, _ in terms:
        if not equals or field.endswith("!"):
            raise not_simulated(f"{name} {field}", name)
    return {field: value for field, _, value in terms}


# Lists of Nodes and Pods, and their merge keys; None: the patch replaces the list. Others are not simulated.
_LISTS: Final[dict[str, str | None]] = {
    "/spec/taints": None,
    "/status/conditions": "type",
    "/status/addresses": "type",
    "/status/containerStatuses": None,
}
_DIRECTIVE: Final = "$patch"
_ABSENT: Final = object()


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


def apply_merge_patch(document: Any, patch: Any) -> Any:
    """Return the document after a merge patch (RFC 7396). Raises Refusal unless the patch is an object."""
    return _merge_map(document, patch, "", is_strategic=False)


def apply_strategic_merge_patch(document: Any, patch: Any) -> Any:
    """Return the Node or Pod after a strategic merge patch. Raises Refusal if it is not simulated."""
    return _merge_map(document, patch, "", is_strategic=True)


def _merge_map(current: Any, patch: Any, path: str, *, is_strategic: bool) -> dict[str, Any]:
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: a merge patch is an object")
    result = dict(current) if isinstance(current, dict) else {}
    for key, value in patch.items():
        where = f"{path}/{key}"
        if is_strategic and key.startswith("$"):
            raise not_simulated(f"strategic merge directive at {where}", "patch")
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = _merge_map(result.get(key), value, where, is_strategic=is_strategic)
        elif is_strategic and isinstance(value, list):
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
    """Change elements at their place and append new ones; the real server may order them otherwise."""
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
    return result


_STRATEGIC: Final = "application/strategic-merge-patch+json"
_PATCHES: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "application/json-patch+json": apply_json_patch,
    "application/merge-patch+json": apply_merge_patch,
    _STRATEGIC: apply_strategic_merge_patch,
}


def patch_object(kind: ResourceKind, stored: StoredObject, body: bytes, content_type: str) -> Document:
    """Return the object after the patch, before validation. Raises Refusal."""
    apply_patch = _PATCHES.get(content_type)
    if apply_patch is None:
        raise Refusal(415, "UnsupportedMediaType", "415: Unsupported Media Type")
    if content_type == _STRATEGIC and not kind.supports_strategic_patch:
        raise not_simulated(f"strategic merge patch of {kind.plural}")
    document: Document = apply_patch(msgspec.json.decode(stored.raw), parse_json(body))
    for key, fixed in (("apiVersion", kind.api_version), ("kind", kind.kind)):
        if document.pop(key, fixed) != fixed:
            raise bad_request(f"a patch may not change {key}")
    return document
