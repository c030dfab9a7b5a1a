"""A machine's stage and the members of its cluster: read from any bytes, or Unreadable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.talos.machine_events import WatchOpening
from libs.talos.machine_reading import read_member_names, read_stage
from libs.talos.proto.generated import (
    Event,
    EventType,
    GetResponse,
    ListResponse,
    Metadata,
    Resource,
    Spec,
    WatchResponse,
)
from libs.talos.proto.strict import InvalidResponse
from libs.talos.resources import MACHINE_STATUS, MEMBERS
from libs.talos.validation import parse_resources

RUNNING, RUNNING_AND_READY, SHUTTING_DOWN = b"\x08\x04", b"\x08\x04\x12\x02\x08\x01", b"\x08\x06"


def a_status(spec: bytes, *, identifier: str = "machine") -> Resource:
    metadata = Metadata(namespace=MACHINE_STATUS.namespace, type=MACHINE_STATUS.type, id=identifier)
    return Resource(metadata=metadata, spec=Spec(proto_spec=spec))


def read(spec: bytes, **asked: str) -> str:
    answer = bytes(GetResponse(resource=a_status(spec, **asked)))
    return read_stage(parse_resources(MACHINE_STATUS, [answer]))


def a_member(name: str, *, namespace: str = "cluster") -> bytes:
    metadata = Metadata(namespace=namespace, type=MEMBERS.type, id=name)
    return bytes(ListResponse(resource=Resource(metadata=metadata, spec=Spec(proto_spec=b"\x0a\x01x"))))


def read_members(answers: list[bytes]) -> frozenset[str]:
    return read_member_names(parse_resources(MEMBERS, answers))


def updated(new: bytes, old: bytes) -> bytes:
    event = Event(event_type=EventType.UPDATED, resource=a_status(new), old=a_status(old))
    return bytes(WatchResponse(event=[event]))


@pytest.mark.parametrize(
    ("spec", "stage"),
    [
        (RUNNING_AND_READY, "running"),
        (SHUTTING_DOWN, "shutting down"),
        (b"\x08\x05", "rebooting"),
        (b"", ""),
        (b"\x08\x2a", ""),  # a future Talos version
    ],
)
def test_the_stage_is_told_in_talos_own_words(spec: bytes, stage: str):
    assert read(spec) == stage


@pytest.mark.parametrize("spec", [b"\x08", b"\x0a\x01x", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"])
def test_a_stage_that_no_talos_would_send_is_unreadable(spec: bytes):
    with pytest.raises(InvalidResponse):
        read(spec)


def test_the_status_of_something_else_is_unreadable():
    with pytest.raises(InvalidResponse):
        read(RUNNING, identifier="another")


@given(st.binary(max_size=64))
def test_any_bytes_are_a_stage_or_unreadable(spec: bytes):
    try:
        assert isinstance(read(spec), str)
    except InvalidResponse:
        return


def test_members_are_known_by_the_names_of_their_nodes():
    assert read_members([a_member("web-1"), a_member("web-2")]) == {"web-1", "web-2"}
    assert read_members([]) == frozenset()


@pytest.mark.parametrize(
    "answers",
    [[a_member("")], [a_member("web-1", namespace="cluster-raw")], [a_member("web-1")] * (MEMBERS.limit + 1)],
    ids=["nameless", "raw", "too many"],
)
def test_members_that_no_talos_would_send_are_unreadable(answers: list[bytes]):
    with pytest.raises(InvalidResponse):
        read_members(answers)


def test_a_watched_status_is_news_when_the_stage_changes_and_not_when_readiness_does():
    opening = WatchOpening(MACHINE_STATUS)
    opening.apply(
        bytes(WatchResponse(event=[Event(event_type=EventType.CREATED, resource=a_status(RUNNING))]))
    )
    assert opening.is_open
    assert not opening.apply(updated(RUNNING_AND_READY, RUNNING))
    assert not opening.apply(updated(RUNNING, RUNNING_AND_READY))
    assert opening.apply(updated(SHUTTING_DOWN, RUNNING_AND_READY))
