"""Requests to the API server, counted from its audit log."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from http import HTTPStatus
from typing import BinaryIO, Final, NamedTuple

import msgspec
from msgspec import field

_LONGEST_LINE: Final = 1 << 20  # at level Metadata a line has one or two kB


class AuditedRequest(NamedTuple):
    """The key of a count. `user` is the impersonated one, if there is one."""

    user: str
    verb: str
    resource: str  # with its subresource, such as "nodes/status"; the path of other URLs
    succeeded: bool = True  # False from status 400 on, for example if a fence rejected a patch


class _AuditUser(msgspec.Struct):
    username: str = ""


class _AuditObject(msgspec.Struct):
    resource: str = ""
    subresource: str = ""


class _AuditStatus(msgspec.Struct, frozen=True):
    code: int = 200


class _AuditEntry(msgspec.Struct, rename="camel"):
    stage: str
    verb: str
    user: _AuditUser
    request_uri: str = field(name="requestURI", default="")
    impersonated_user: _AuditUser | None = None
    object_ref: _AuditObject | None = None
    response_status: _AuditStatus = _AuditStatus()


_ENTRY = msgspec.json.Decoder(_AuditEntry)


def count_requests(log: Iterable[bytes]) -> Counter[AuditedRequest]:
    """Count requests; a watch counts when it opens, other requests when they are answered."""
    counts: Counter[AuditedRequest] = Counter()
    for line in log:
        if not line.endswith(b"\n"):
            break  # not completely written yet
        entry = _ENTRY.decode(line)
        if entry.stage == ("ResponseStarted" if entry.verb == "watch" else "ResponseComplete"):
            counts[_make_request(entry)] += 1
    return counts


def find_last_line_end(log: BinaryIO) -> int:
    """Return the end of the last complete line; an incomplete one may follow."""
    size = log.seek(0, os.SEEK_END)
    start = max(0, size - _LONGEST_LINE)
    log.seek(start)
    return start + log.read(size - start).rfind(b"\n") + 1


def _make_request(entry: _AuditEntry) -> AuditedRequest:
    user = (entry.impersonated_user or entry.user).username
    target = entry.object_ref
    succeeded = entry.response_status.code < HTTPStatus.BAD_REQUEST
    if target is None or not target.resource:
        return AuditedRequest(user, entry.verb, entry.request_uri.partition("?")[0], succeeded)
    resource = f"{target.resource}/{target.subresource}" if target.subresource else target.resource
    return AuditedRequest(user, entry.verb, resource, succeeded)
