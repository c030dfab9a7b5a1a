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
    wanted = _parse_terms(request, "fieldSelector")
    for field, _, _ in wanted:
        if field not in kind.field_selectors:
            raise bad_request(f"field label not supported: {field}")
    labels = _parse_terms(request, "labelSelector")  # sets, and keys without values, are not simulated
    return lambda item: (
        all((_get_text(item, field) == value) == equal for field, equal, value in wanted)
        and all(
            (item["metadata"].get("labels", {}).get(key) == value) == equal for key, equal, value in labels
        )
    )


def _get_text(item: Document, path: str) -> str:
    for step in path.split("."):
        item = item.get(step, {})
    return str(item or "")


def _parse_terms(asked: ApiRequest, name: str) -> list[tuple[str, bool, str]]:
    text = asked.query.get(name, "")
    return [_parse_term(part) for part in text.split(",")] if text else []


def _parse_term(text: str) -> tuple[str, bool, str]:
    field, equals, value = text.partition("=")
    if not equals:
        raise bad_request(f"invalid selector: '{text}'; can't understand '{text}'")
    if field.endswith("!"):
        return field[:-1], False, value
    return field, True, value.removeprefix("=")
