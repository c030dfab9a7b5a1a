"""What the API answers to a request, without faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from libs.testbed.clouds.api_server import SimRequest
from libs.testbed.clouds.hcloud.project import SINGULARS, SimProject
from libs.testbed.clouds.http_faults import Answer

_PER_PAGE: Final = 25
_MAX_PER_PAGE: Final = 50


def make_error(status: int, code: str, message: str = "no", **headers: str) -> Answer:
    """Return an error in the form of the API."""
    error = {"code": code, "message": message, "details": None}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status=status, document={"error": error}, headers=names)


def answer_request(project: SimProject, request: SimRequest, *, unix_time: float) -> Answer:
    """Return the answer to a request with one of the project's tokens, with the headers of its rate limit."""
    bucket = project.bucket
    if bucket.take():
        answer = _read(project, request.method, request.path.strip("/").split("/"), request.query)
    else:
        answer = make_error(429, "rate_limit_exceeded", "limit of requests reached")
    limits = {
        "RateLimit-Limit": str(bucket.limit),
        "RateLimit-Remaining": str(bucket.remaining),
        "RateLimit-Reset": str(round(unix_time + bucket.seconds_until_full)),
    }
    return msgspec.structs.replace(answer, headers={**answer.headers, **limits})


def _read(project: SimProject, method: str, path: list[str], query: Mapping[str, str]) -> Answer:
    if method != "GET":
        return make_error(403, "token_readonly", "only GET is allowed")
    match path:
        case [kind] if kind in SINGULARS:
            return _list(project, kind, query)
        case [kind, number] if kind in SINGULARS and number.isdigit():
            found = project.tables[kind].get(int(number))
            if found is not None:
                return Answer(status=200, document={SINGULARS[kind]: found})
    return make_error(404, "not_found", "no such object")


def _list(project: SimProject, kind: str, query: Mapping[str, str]) -> Answer:
    numbers = {name: query.get(name, default) for name, default in (("page", "1"), ("per_page", _PER_PAGE))}
    try:
        page, per_page = (int(number) for number in numbers.values())
    except ValueError:
        page = 0
    if page < 1 or not 1 <= per_page <= _MAX_PER_PAGE or "label_selector" in query:
        return make_error(400, "invalid_input", "invalid input in a query parameter")
    names, types = query.get("name"), query.get("type")
    found = [
        each
        for _, each in sorted(project.tables[kind].items())
        if names in {None, each["name"]} and types in {None, each.get("type")}
    ]
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
