"""metadata.managedFields of a Node: the clients that have set its labels, annotations and taints. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from libs.testbed.sim_apiserver.api_request import ApiRequest
from libs.testbed.sim_apiserver.resource_kind import Document

Path = tuple[str, ...]
_LEAF: Final[Document] = {}  # one object for all: thousands of Nodes and their history have many


def record_manager(old: Document, new: Document, asked: ApiRequest, now: str) -> Document:
    """Return the Node with the keys that this write has set under the name of its client.

    Unlike the real server, it records no other fields, and no "." for a map as a whole.
    """
    before, after = _list_values(old), _list_values(new)
    written = {path for path, value in after.items() if before.get(path) != value}
    lost = written | (before.keys() - after.keys())
    if not lost:
        return new
    writer = {"manager": asked.manager, "operation": "Update", "apiVersion": "v1", "time": now}
    if asked.subresource:
        writer["subresource"] = asked.subresource
    entries = []
    for entry in new["metadata"].get("managedFields", []):
        paths = {path for path in _list_paths(entry["fieldsV1"]) if path not in lost}
        if written and (entry["manager"], entry.get("subresource", "")) == (asked.manager, asked.subresource):
            written |= paths
        elif paths:
            entries.append({**entry, "fieldsV1": _nest(paths)})
    if written:
        entries.append({**writer, "fieldsType": "FieldsV1", "fieldsV1": _nest(written)})
    return {**new, "metadata": {**new["metadata"], "managedFields": entries}}


def _list_values(node: Document) -> dict[Path, Any]:
    metadata, taints = node.get("metadata", {}), node.get("spec", {}).get("taints")
    values: dict[Path, Any] = {
        ("f:metadata", f"f:{kind}", sys.intern(f"f:{key}")): value
        for kind in ("labels", "annotations")
        for key, value in metadata.get(kind, {}).items()
    }
    return values | ({("f:spec", "f:taints"): taints} if taints else {})


def _list_paths(fields: Document, parents: Path = ()) -> Iterator[Path]:
    for name, part in fields.items():
        yield from _list_paths(part, (*parents, name)) if part else [(*parents, name)]


def _nest(paths: Iterable[Path]) -> Document:
    fields: Document = {}
    for *parents, last in sorted(paths):
        part = fields
        for name in parents:
            part = part.setdefault(name, {})
        part[last] = _LEAF
    return fields
