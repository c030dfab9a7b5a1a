"""Who asked the apiserver for what: counts from its audit log."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from http import HTTPStatus
from typing import BinaryIO, Final, NamedTuple

import msgspec
from msgspec import field

_LONGEST_LINE: Final = 1 << 20  # at level Metadata a line has one or two kB


class Request(NamedTuple):
    """What is counted together. `user` is the impersonated one if there is any."""

    user: str
    verb: str
    resource: str  # with its subresource: "nodes/status"; for other URLs the path
    succeeded: bool = True  # False from status 400 on, such as a patch whose fence failed


class _User(msgspec.Struct):
    username: str = ""


class _Object(msgspec.Struct):
    resource: str = ""
    subresource: str = ""


class _Status(msgspec.Struct, frozen=True):
    code: int = 200


class _Entry(msgspec.Struct, rename="camel"):
    stage: str
    verb: str
    user: _User
    request_uri: str = field(name="requestURI", default="")
    impersonated_user: _User | None = None
    object_ref: _Object | None = None
    response_status: _Status = _Status()


_ENTRY = msgspec.json.Decoder(_Entry)


def count(log: Iterable[bytes]) -> Counter[Request]:
    """Count requests; a watch counts when it opens, everything else when it was answered."""
    counts: Counter[Request] = Counter()
    for line in log:
        if not line.endswith(b"\n"):
            break  # being written at this moment
        entry = _ENTRY.decode(line)
        if entry.stage == ("ResponseStarted" if entry.verb == "watch" else "ResponseComplete"):
            counts[_request(entry)] += 1
    return counts


def end_of_whole_lines(log: BinaryIO) -> int:
    """Where the last whole line ends: behind it another one may be half written."""
    size = log.seek(0, os.SEEK_END)
    start = max(0, size - _LONGEST_LINE)
    log.seek(start)
    return start + log.read(size - start).rfind(b"\n") + 1


def _request(entry: _Entry) -> Request:
    user = (entry.impersonated_user or entry.user).username
    target = entry.object_ref
    succeeded = entry.response_status.code < HTTPStatus.BAD_REQUEST
    if target is None or not target.resource:
        return Request(user, entry.verb, entry.request_uri.partition("?")[0], succeeded)
    resource = f"{target.resource}/{target.subresource}" if target.subresource else target.resource
    return Request(user, entry.verb, resource, succeeded)
