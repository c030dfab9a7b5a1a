"""The API server's strategic merge of a Node's status, for the patches that we send."""

import copy
from typing import Any


def apply_status(document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """The Node after the patch: addresses with `$patch: replace`, conditions merged by type."""
    result = copy.deepcopy(document)
    if not patch:
        return result
    if patch["metadata"]["uid"] != result["metadata"]["uid"]:
        raise ValueError("metadata.uid: the Node is another one")
    status = result.setdefault("status", {})
    for key, items in patch["status"].items():
        if key == "addresses":
            if {"$patch": "replace"} not in items:
                raise NotImplementedError("addresses are only ever replaced as a whole")
            status[key] = [item for item in items if "$patch" not in item]
        else:
            status[key] = _merged(status.get(key, []), items)
    return result


def _merged(current: list[dict[str, Any]], items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_type = {item["type"]: item for item in current}
    for item in items:
        if item.get("$patch") == "delete":
            by_type.pop(item["type"], None)
        else:
            by_type[item["type"]] = by_type.get(item["type"], {}) | item
    return list(by_type.values())
