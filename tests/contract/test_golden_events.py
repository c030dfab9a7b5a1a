"""Every version of every event stays readable as it was first written: no line of the file is ever edited."""

import contextlib
import typing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract import events

FILE = Path(__file__).parent / "golden_events.jsonl"
GOLDEN = {msgspec.json.decode(line)["event"]: line for line in FILE.read_bytes().splitlines()}


@pytest.mark.parametrize("golden", GOLDEN.values(), ids=GOLDEN)
def test_a_golden_sample_is_read_and_written_the_same_for_ever(golden: bytes):
    assert events.encode(events.decode(golden)) == golden


def test_every_event_has_a_golden_sample_and_a_version():
    tags = {str(kind.__struct_config__.tag) for kind in typing.get_args(events.Event)}
    assert tags == GOLDEN.keys(), f"append an encoded event with all fields to {FILE.name}"
    assert all(tag.rpartition(".v")[2].isdigit() for tag in tags)


@pytest.mark.parametrize("golden", GOLDEN.values(), ids=GOLDEN)
def test_fields_that_a_later_version_adds_are_ignored(golden: bytes):
    later = msgspec.json.decode(golden) | {"added_later": {"x": 1}}
    assert events.decode(msgspec.json.encode(later)) == events.decode(golden)


@given(st.sampled_from(list(GOLDEN.values())), st.integers(0, 400), st.binary(max_size=3))
def test_broken_bytes_are_an_event_error_and_nothing_else(golden: bytes, at: int, junk: bytes):
    broken = golden[:at] + junk + golden[at + 1 :]
    with contextlib.suppress(events.EventError):  # any other exception fails the test
        assert events.encode(events.decode(broken))


def test_deeply_nested_bytes_are_an_event_error():
    with pytest.raises(events.EventError):
        events.decode(b'{"event":"NodeObserved.v1","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
