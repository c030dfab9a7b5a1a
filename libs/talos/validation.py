"""Validates that responses have the requested resources, and limits their size."""

from collections.abc import Sequence
from typing import Final

from libs.talos.cosi_messages import Resource, decode_response
from libs.talos.protobuf import InvalidResponse
from libs.talos.resources import ResourceRef

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
    of_type = (resource.namespace, resource.type) == (ref.namespace, ref.type)
    if not of_type or not resource.id or ref.id not in ("", resource.id):
        wanted = f"{ref.namespace}/{ref.type}/{ref.id or '*'}"
        received = f"{resource.namespace}/{resource.type}/{resource.id}"
        raise InvalidResponse(f"requested {wanted}, received {received[:200]!r}")
    return resource.id
