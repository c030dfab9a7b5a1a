"""Counting requests from a log that is being written."""

import io

import pytest

from libs.testbed.control_plane.audit import Request, count, end_of_whole_lines

LINE = b'{"stage":"ResponseComplete","verb":"get","user":{"username":"a"},"requestURI":"/readyz?x=1"}\n'


@pytest.mark.parametrize("half", [b"", LINE[:40], LINE[:-1]])
def test_a_mark_never_lies_within_a_line_that_is_being_written(half: bytes):
    log = io.BytesIO(LINE * 3 + half)
    mark = end_of_whole_lines(log)
    assert mark == 3 * len(LINE)
    log = io.BytesIO(LINE * 4)  # the rest has been written
    log.seek(mark)
    assert count(log) == {Request("a", "get", "/readyz"): 1}


@pytest.mark.parametrize("text", [b"", LINE[:-1]])
def test_a_log_without_a_whole_line_is_marked_at_its_beginning(text: bytes):
    assert end_of_whole_lines(io.BytesIO(text)) == 0
