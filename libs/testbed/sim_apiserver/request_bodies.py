"""Parses bodies and selectors, and applies patches; rejects errors like the real server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from libs.testbed.sim_apiserver.api_request import ApiRequest
from libs.testbed.sim_apiserver.object_store import StoredObject
from libs.testbed.sim_apiserver.patches import (
    apply_json_patch,
    apply_merge_patch,
    apply_strategic_merge_patch,
)
from libs.testbed.sim_apiserver.refusals import Refusal, bad_request, not_simulated
from libs.testbed.sim_apiserver.resource_kind import Document, ResourceKind

JSON: Final = "application/json"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_PATCHES: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "application/json-patch+json": apply_json_patch,
    "application/merge-patch+json": apply_merge_patch,
    _STRATEGIC: apply_strategic_merge_patch,
}


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
