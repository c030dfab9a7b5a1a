"""Counts of requests from an audit log during writes."""

import io

import msgspec
import pytest

from libs.testbed.control_plane.audit_log import AuditedRequest, count_requests, find_last_line_end
from tests.audit_lines import make_audit_line

LINE = make_audit_line("a", "get", objectRef={}, requestURI="/readyz?x=1")


@pytest.mark.parametrize("half", [b"", LINE[:40], LINE[:-1]])
def test_a_mark_is_never_within_an_incomplete_line(half: bytes):
    log = io.BytesIO(LINE * 3 + half)
    mark = find_last_line_end(log)
    assert mark == 3 * len(LINE)
    log = io.BytesIO(LINE * 4)  # the rest has been written
    log.seek(mark)
    assert count_requests(log) == {AuditedRequest("a", "get", "/readyz"): 1}


@pytest.mark.parametrize("end", [1, 60, 100, len(LINE) - 3])
def test_an_entry_that_a_killed_server_left_incomplete_hides_no_other(end: int):
    """The next server appends to the incomplete line."""
    assert count_requests([LINE, LINE[:end] + LINE, LINE[:end] + LINE[:-1]]) == {
        AuditedRequest("a", "get", "/readyz"): 2
    }


def test_a_line_that_ends_with_no_entry_is_an_error():
    with pytest.raises(msgspec.DecodeError):
        count_requests([LINE[:60] + b"\n"])


@pytest.mark.parametrize("text", [b"", LINE[:-1]])
def test_a_log_without_a_complete_line_is_marked_at_its_start(text: bytes):
    assert find_last_line_end(io.BytesIO(text)) == 0
