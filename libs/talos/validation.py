"""Validates responses of machines. Each function raises InvalidResponse for any other value."""

from collections.abc import Sequence
from typing import Final

from libs.talos.cosi_messages import Resource, decode_response
from libs.talos.proto.strict import InvalidResponse, require_bytes
from libs.talos.resources import ResourceRef

MAX_TEXT_CHARS: Final = 1024
MAX_MESSAGE_BYTES: Final = 64 * 1024
MAX_BUFFERED_BYTES: Final = (
    128 * 1024
)  # unread, per response: a message of maximum size fits, after other data
MAX_RESPONSE_BYTES: Final = 512 * 1024  # all messages of one call, or of the beginning of a watch
MAX_MESSAGES: Final = 2048


def parse_resources(ref: ResourceRef, answers: Sequence[bytes]) -> list[Resource]:
    """Return the resources of the responses to Get or List, as `select_resources` does."""
    if ref.id and not answers:
        raise InvalidResponse("no answer")
    return select_resources(ref, [decode_response(answer) for answer in answers])


def select_resources(ref: ResourceRef, resources: Sequence[Resource]) -> list[Resource]:
    """Return the resources sorted by id. Raises InvalidResponse unless they are the requested ones."""
    if len(resources) > ref.limit:
        raise InvalidResponse(f"more than {ref.limit} of {ref.step}")
    found = {_require_id(resource, ref): resource for resource in resources}
    if len(found) < len(resources):
        raise InvalidResponse(f"two of {ref.step} have the same id")
    return [found[identifier] for identifier in sorted(found)]


def _require_id(resource: Resource, ref: ResourceRef) -> str:
    received = (
        require_text(resource.namespace, "namespace"),
        require_text(resource.type, "type"),
        require_text(resource.id, "id"),
    )
    if received[:2] != (ref.namespace, ref.type) or not received[2] or ref.id not in ("", received[2]):
        wanted = f"{ref.namespace}/{ref.type}/{ref.id or '*'}"
        raise InvalidResponse(f"requested {wanted}, received {'/'.join(received)[:200]!r}")
    return received[2]


def require_text(value: object, what: str) -> str:
    """Return a text of limited length."""
    if not isinstance(value, str):
        raise InvalidResponse(f"{what} is not text")
    if len(value) > MAX_TEXT_CHARS:
        raise InvalidResponse(f"{what} is longer than {MAX_TEXT_CHARS} characters")
    return value


def require_smbios_text(value: object, what: str) -> str:
    """Return a text from SMBIOS; bytes that are not UTF-8 become the replacement character."""
    return require_text(require_bytes(value, what).decode(errors="replace"), what)


def require_number(value: object, what: str, low: int, high: int) -> int:
    """Return a number between `low` and `high`, inclusive."""
    if not isinstance(value, int) or not low <= value <= high:
        raise InvalidResponse(f"{what} is not a number between {low} and {high}")
    return value
