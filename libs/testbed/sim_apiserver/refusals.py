"""Rejections as Status objects, with the messages of kube-apiserver 1.36."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec


class Cause(msgspec.Struct, frozen=True):
    """One element of details.causes."""

    reason: str
    message: str
    field: str


def invalid_value(value: object, why: str, field: str) -> Cause:
    """The cause for an invalid value."""
    shown = f'"{value}"' if isinstance(value, str) else value
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: {why}", field)


def required_value(field: str, why: str = "") -> Cause:
    """The cause for a missing value."""
    return Cause("FieldValueRequired", f"Required value: {why}".removesuffix(": "), field)


def duplicate_value(value: str, field: str) -> Cause:
    """The cause for a duplicate; `value` is JSON or contains its quotes."""
    return Cause("FieldValueDuplicate", f"Duplicate value: {value}", field)


def unsupported_value(value: str, supported: Iterable[str], field: str) -> Cause:
    """The cause for a value that is not in the list."""
    listed = ", ".join(f'"{one}"' for one in supported)
    return Cause("FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {listed}', field)


def forbidden_value(why: str, field: str) -> Cause:
    """The cause for a forbidden change."""
    return Cause("FieldValueForbidden", f"Forbidden: {why}", field)


def too_long_value(limit: int, field: str) -> Cause:
    """The cause for a value of too many bytes."""
    return Cause("FieldValueTooLong", f"Too long: may not be more than {limit} bytes", field)


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
        kind: str = "",
        causes: Iterable[Cause] = (),
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_seconds = retry_after_seconds
        details: dict[str, Any] = {}
        if about is not None:
            fields = {"name": about.name, "group": about.group, "kind": kind or about.plural}
            details = {key: value for key, value in fields.items() if value}
        if listed := [msgspec.to_builtins(cause) for cause in causes]:
            details["causes"] = listed
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


def unauthorized() -> Refusal:
    """401: unknown credentials."""
    return Refusal(401, "Unauthorized", "Unauthorized")


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


def invalid(kind: str, about: ResourceReference, causes: list[Cause]) -> Refusal:
    """422 with the invalid fields."""
    messages = [f"{cause.field}: {cause.message}" for cause in causes]
    listed = messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]"
    message = f'{kind} "{about.name}" is invalid: {listed}'
    return Refusal(422, "Invalid", message, about=about, kind=kind, causes=causes)


def not_simulated(what: str, field: str = "") -> Refusal:
    """422 with a cause, unlike a failed fence: the real server might have carried out the request."""
    message = f"not simulated: {what}"
    return Refusal(422, "Invalid", message, causes=[Cause("NotSimulated", message, field or what)])
