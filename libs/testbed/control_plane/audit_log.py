"""The entries of kube-apiserver's audit log (audit.k8s.io/v1), and counts of requests from them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from http import HTTPStatus
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec
from msgspec import field

_LONGEST_LINE: Final = 1 << 20  # at level Metadata a line has one or two kB


class AuditedRequest(NamedTuple):
    """The key of a count. `user` is the impersonated one, if there is one."""

    user: str
    verb: str
    resource: str  # with its subresource, such as "nodes/status"; the path of other URLs
    succeeded: bool = True  # False from status 400 on, for example if a fence rejected a patch


def count_requests(log: Iterable[bytes]) -> Counter[AuditedRequest]:
    """Count requests; a watch counts when it opens, other requests when they are answered."""
    return Counter(
        AuditedRequest(entry.user_name, entry.verb, entry.resource, entry.succeeded)
        for entry in read_answered_requests(log)
    )


def find_last_line_end(log: BinaryIO) -> int:
    """Return the end of the last complete line; an incomplete one may follow."""
    size = log.seek(0, os.SEEK_END)
    start = max(0, size - _LONGEST_LINE)
    log.seek(start)
    return start + log.read(size - start).rfind(b"\n") + 1


WRITE_VERBS: Final = ("create", "update", "patch", "delete")


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Target(msgspec.Struct, frozen=True):
    resource: str = ""
    subresource: str = ""
    name: str = ""


class _Status(msgspec.Struct, frozen=True):
    code: int = 200


class AuditEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One stage of one request. Objects are only in a log at level RequestResponse."""

    stage: str
    verb: str
    user: _User
    received: datetime = field(name="requestReceivedTimestamp")
    answered: datetime = field(name="stageTimestamp")
    request_uri: str = field(name="requestURI", default="")
    impersonated_user: _User | None = None
    sources: tuple[str, ...] = field(name="sourceIPs", default=())
    target: _Target = field(name="objectRef", default=_Target())
    response_status: _Status = _Status()
    request_object: Any = None
    response_object: Any = None

    @property
    def user_name(self) -> str:
        """The impersonated user, if there is one."""
        return (self.impersonated_user or self.user).username

    @property
    def resource(self) -> str:
        """The resource with its subresource, such as "nodes/status"; the path of other URLs."""
        target = self.target
        if not target.resource:
            return self.request_uri.partition("?")[0]
        return f"{target.resource}/{target.subresource}" if target.subresource else target.resource

    @property
    def succeeded(self) -> bool:
        """False from status 400 on, for example if a fence rejected a patch."""
        return self.response_status.code < HTTPStatus.BAD_REQUEST


_DECODER: Final = msgspec.json.Decoder(AuditEntry)
_BEGINNING: Final = (
    b'{"kind":"Event","apiVersion":"audit.k8s.io/v1"'  # a text within an entry has escaped quotes
)


def read_answered_requests(log: Iterable[bytes]) -> Iterator[AuditEntry]:
    """Read one entry per request: a watch counts when it opens, other requests when they are answered.

    The last line is ignored if it is not completely written yet, as is the part of an entry that
    kube-apiserver was writing when it was killed: the next entry follows it in the same line.
    """
    for line in log:
        if not line.endswith(b"\n"):
            return
        entry = _decode_last_entry(line)
        if entry.stage == ("ResponseStarted" if entry.verb == "watch" else "ResponseComplete"):
            yield entry


def _decode_last_entry(line: bytes) -> AuditEntry:
    """The entry that ends the line. Raises msgspec.DecodeError if no complete one does."""
    try:
        return _DECODER.decode(line)
    except msgspec.DecodeError:
        begin = line.rfind(_BEGINNING)
        if begin <= 0:
            raise
    return _DECODER.decode(line[begin:])
