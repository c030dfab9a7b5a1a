"""Requests to the API server, counted from its audit log."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import BinaryIO, Final, NamedTuple

from libs.testbed.control_plane.audit_entry import read_answered_requests

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
