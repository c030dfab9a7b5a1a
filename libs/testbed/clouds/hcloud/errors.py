"""Errors in the form of the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from libs.testbed.clouds.http_faults import Answer

# Clients read the code: the statuses of most codes are not documented. Others are 422.
STATUSES: Final[Mapping[str, int]] = {
    "json_error": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "resource_limit_exceeded": 403,
    "not_found": 404,
    "conflict": 409,
    "uniqueness_error": 409,
    "protected": 423,
    "locked": 423,
    "rate_limit_exceeded": 429,
    "service_error": 503,
}
_DETAILS: Final[Mapping[str, str]] = {"invalid_input": "fields", "uniqueness_error": "fields"}


class Refusal(Exception):
    """A request that the API refuses without an effect."""

    def __init__(self, code: str, message: str = "no", field: str = "") -> None:
        super().__init__(code, message)
        self.code, self.message, self.field = code, message, field


def make_error(status: int, code: str, message: str = "no", **headers: str) -> Answer:
    """Return an error with this status."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    error: dict[str, Any] = {"code": code, "message": message, "details": None}
    return Answer(status=status, document={"error": error}, headers=names)


def answer_refusal(refusal: Refusal) -> Answer:
    """Return the error, with the field that it is about if the code has one."""
    answer = make_error(STATUSES.get(refusal.code, 422), refusal.code, refusal.message)
    if refusal.field and refusal.code in _DETAILS:
        fields = [{"name": refusal.field, "messages": [refusal.message]}]
        answer.document["error"]["details"] = {_DETAILS[refusal.code]: fields}
    return answer
