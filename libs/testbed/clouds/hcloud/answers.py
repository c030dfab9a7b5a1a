"""What the API answers to a request, without faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from libs.testbed.clouds.api_server import SimRequest
from libs.testbed.clouds.hcloud.errors import Refusal, answer_refusal
from libs.testbed.clouds.hcloud.objects import Document
from libs.testbed.clouds.hcloud.project import SINGULARS, SimProject
from libs.testbed.clouds.hcloud.selectors import match_labels
from libs.testbed.clouds.hcloud.writes import answer_write
from libs.testbed.clouds.http_faults import Answer

_PER_PAGE: Final = 25
_MAX_PER_PAGE: Final = 50


def answer_request(project: SimProject, request: SimRequest, *, unix_time: float) -> Answer:
    """Return the answer to a request with one of the project's tokens, with the headers of its rate limit."""
    bucket = project.bucket
    project.actions.settle()
    try:
        answer = _answer(project, request)
    except Refusal as refusal:
        answer = answer_refusal(refusal)
    limits = {
        "RateLimit-Limit": str(bucket.limit),
        "RateLimit-Remaining": str(bucket.remaining),
        "RateLimit-Reset": str(round(unix_time + bucket.seconds_until_full)),
    }
    return msgspec.structs.replace(answer, headers={**answer.headers, **limits})


def _answer(project: SimProject, request: SimRequest) -> Answer:
    if not project.bucket.take():
        raise Refusal("rate_limit_exceeded", "limit of requests reached")
    path = request.path.strip("/").split("/")
    if request.method != "GET":
        return answer_write(project, request.method, path, request.body)
    match path:
        case ["actions"]:
            numbers = {int(number) for number in request.query.get("id", "").split(",") if number.isdigit()}
            if not numbers:
                raise Refusal("invalid_input", "is needed", "id")
            found = [each for number, each in project.actions.documents.items() if number in numbers]
            return _make_page("actions", found, request.query)
        case ["actions", number] if number.isdigit() and int(number) in project.actions.documents:
            return Answer(status=200, document={"action": dict(project.actions.documents[int(number)])})
        case [kind, number, "actions"] if kind in SINGULARS and number.isdigit():
            project.find(kind, int(number))
            return _make_page("actions", project.actions.list_of(SINGULARS[kind], int(number)), request.query)
        case [kind] if kind in SINGULARS:
            return _list(project, kind, request.query)
        case [kind, number] if kind in SINGULARS and number.isdigit():
            found_one = project.find(kind, int(number))
            return Answer(status=200, document={SINGULARS[kind]: project.render(kind, found_one)})
    raise Refusal("not_found", "no such object")


def _list(project: SimProject, kind: str, query: Mapping[str, str]) -> Answer:
    name, wanted, selector = query.get("name"), query.get("type"), query.get("label_selector")
    try:
        found = [
            each
            for _, each in sorted(project.tables[kind].items())
            if name in {None, each["name"]}
            and wanted in {None, each.get("type")}
            and (selector is None or match_labels(selector, each.get("labels", {})))
        ]
    except ValueError as error:
        raise Refusal("invalid_input", str(error), "label_selector") from error
    return _make_page(kind, [project.render(kind, each) for each in found], query)


def _make_page(kind: str, found: list[Document], query: Mapping[str, str]) -> Answer:
    numbers = {name: query.get(name, default) for name, default in (("page", "1"), ("per_page", _PER_PAGE))}
    try:
        page, per_page = (int(number) for number in numbers.values())
    except ValueError:
        page = 0
    if page < 1 or not 1 <= per_page <= _MAX_PER_PAGE:
        raise Refusal("invalid_input", "not a page", "page")
    last = max(1, -(-len(found) // per_page))
    pagination: dict[str, Any] = {
        "page": page,
        "per_page": per_page,
        "previous_page": page - 1 if page > 1 else None,
        "next_page": page + 1 if page < last else None,
        "last_page": last,
        "total_entries": len(found),
    }
    items = found[(page - 1) * per_page : page * per_page]
    return Answer(status=200, document={kind: items, "meta": {"pagination": pagination}})
