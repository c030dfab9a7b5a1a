"""How bodies of requests are read: unknown fields and values of another form are invalid input."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from libs.testbed.clouds.hcloud.errors import Refusal
from libs.testbed.clouds.hcloud.objects import Document

Name = Annotated[str, Meta(min_length=1)]
Port = Annotated[int, Meta(ge=1, le=65535)]


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """A request, or a part of it."""


BodyT = TypeVar("BodyT")


def read_body(sent: Document, body: type[BodyT]) -> BodyT:
    """Return the body. Raises Refusal if it has another form."""
    try:
        return msgspec.convert(sent, body)
    except msgspec.ValidationError as error:
        _, _, path = str(error).partition("`$")
        raise Refusal("invalid_input", str(error), path.strip("`.") or "body") from error


def read_field(sent: Document, name: str, form: Any) -> Any:
    """Return the only field of a body. Raises Refusal if it is missing, or the body has another form."""
    if sent.keys() != {name}:
        raise Refusal("invalid_input", "is the only field, and needed", name)
    return read_body(sent[name], form)
