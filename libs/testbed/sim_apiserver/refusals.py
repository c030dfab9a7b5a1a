"""Rejections as Status objects, with the messages of kube-apiserver 1.36."""

from __future__ import annotations

from typing import Any

import msgspec


class ResourceReference(msgspec.Struct, frozen=True):
    """The target of a rejected request: plural, group, and the name of the object if there is one."""

    plural: str
    group: str = ""
    name: str = ""

    def __str__(self) -> str:
        qualified = f"{self.plural}.{self.group}" if self.group else self.plural
        return f'{qualified} "{self.name}"' if self.name else qualified


class Refusal(Exception):
    """A rejected request; `status` is the body of the response."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        about: ResourceReference | None = None,
        cause: dict[str, str] | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_seconds = retry_after_seconds
        details: dict[str, Any] = {}
        if about is not None:
            fields = {"name": about.name, "group": about.group, "kind": about.plural}
            details = {key: value for key, value in fields.items() if value}
        if cause is not None:
            details["causes"] = [cause]
        if retry_after_seconds is not None:
            details["retryAfterSeconds"] = retry_after_seconds
        self.status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            **({"reason": reason} if reason else {}),
            "details": details,
            "code": code,
        }


def bad_request(message: str) -> Refusal:
    """400: malformed request."""
    return Refusal(400, "BadRequest", message)


def forbidden(about: ResourceReference, why: str) -> Refusal:
    """403, with the user and the denied action."""
    return Refusal(403, "Forbidden", f"{about} is forbidden: {why}", about=about)


def not_found(about: ResourceReference) -> Refusal:
    """404: no such object."""
    return Refusal(404, "NotFound", f"{about} not found", about=about)


def no_such_resource() -> Refusal:
    """404: unknown path."""
    return Refusal(404, "NotFound", "the server could not find the requested resource")


def method_not_allowed() -> Refusal:
    """405."""
    return Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def already_exists(about: ResourceReference) -> Refusal:
    """409 to a create."""
    return Refusal(409, "AlreadyExists", f"{about} already exists", about=about)


def conflict(about: ResourceReference, why: str = "") -> Refusal:
    """409: the object has another version or UID than the request names."""
    why = why or (
        "the object has been modified; please apply your changes to the latest version and try again"
    )
    return Refusal(409, "Conflict", f"Operation cannot be fulfilled on {about}: {why}", about=about)


def expired(message: str) -> Refusal:
    """410: the requested version is compacted."""
    return Refusal(410, "Expired", message)


def patch_failed() -> Refusal:
    """422 without a cause, as the real server responds to a JSON Patch that does not apply."""
    return Refusal(422, "Invalid", "the server rejected our request due to an error in our request")


def invalid(about: ResourceReference, field: str, reason: str, why: str) -> Refusal:
    """422 with the invalid field; `reason` is "Required", "Invalid" or "Forbidden"."""
    cause = {"reason": f"FieldValue{reason}", "message": f"{reason}: {why}", "field": field}
    message = f"{about} is invalid: {field}: {reason}: {why}"
    return Refusal(422, "Invalid", message, about=about, cause=cause)


def not_simulated(what: str, field: str = "") -> Refusal:
    """422 with a cause, unlike a failed fence: the real server might have carried out the request."""
    message = f"not simulated: {what}"
    cause = {"reason": "NotSimulated", "message": message, "field": field or what}
    return Refusal(422, "Invalid", message, cause=cause)
