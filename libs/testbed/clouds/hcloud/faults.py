"""Faults in the forms of the API: each replaces one response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from libs.testbed.clouds.hcloud.errors import make_error
from libs.testbed.clouds.hcloud.objects import Document
from libs.testbed.clouds.hcloud.project import SINGULARS
from libs.testbed.clouds.http_faults import MakeResponse, change_document, replace_answer


def _change_items(change: Callable[[list[Any]], list[Any]]) -> MakeResponse:
    """Change the items of a list, but not its meta; other answers stay."""
    return change_document(
        lambda document: document | {kind: change(document[kind]) for kind in SINGULARS if kind in document}
    )


def _empty_list(document: Document) -> Document:
    if "meta" not in document:
        return document
    numbers = {"page": 1, "previous_page": None, "next_page": None, "last_page": 1, "total_entries": 0}
    meta = {"pagination": document["meta"]["pagination"] | numbers}
    return {kind: [] for kind in document} | {"meta": meta}


def _wrong_id(document: Document) -> Document:
    return {key: value | {"id": value["id"] + 1} for key, value in document.items()}


FAULTS: Final[Mapping[str, MakeResponse]] = {
    "unauthorized": replace_answer(make_error(401, "unauthorized")),
    "forbidden": replace_answer(make_error(403, "forbidden")),
    "quota": replace_answer(make_error(403, "resource_limit_exceeded", "quota exceeded")),
    "rate_limited": replace_answer(make_error(429, "rate_limit_exceeded", Retry_After="90")),
    "conflict": replace_answer(make_error(409, "conflict")),
    "unavailable": replace_answer(make_error(412, "resource_unavailable")),
    "protected": replace_answer(make_error(423, "protected")),
    "locked": replace_answer(make_error(423, "locked")),
    "service_error": replace_answer(make_error(503, "service_error")),
    "lying_not_found": replace_answer(make_error(404, "not_found")),
    "half_page": _change_items(lambda items: items[: len(items) // 2]),
    "duplicate": _change_items(lambda items: items[:-1] + items[:1]),
    "empty_list": change_document(_empty_list),
    "wrong_id": change_document(_wrong_id),
}
