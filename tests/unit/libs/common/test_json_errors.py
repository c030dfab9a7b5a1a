"""Bytes that are not UTF-8, and deep nesting, are invalid JSON like any other."""

import pytest

from libs.common.bus.nats.client import parse_message
from libs.common.bus.nats.jetstream import decode_direct_answer
from libs.common.bus.protocol import BusError
from libs.common.contract.node import Node
from libs.common.kube.errors import ServerError
from libs.common.kube.objects import Resource, UnreadableObject, decode_object, read_page
from libs.common.kube.request import Request
from libs.common.kube.watch_events import ListAgain, decode_watch_event

NODES = Resource(plural="nodes", path="/api/v1/nodes", item=Node)
REQUEST = Request(verb="watch", resource="nodes", path="/api/v1/nodes")
INVALID = {"not-utf-8": b'"\xff"', "deep": b"[" * 100_000}


def test_an_object_that_is_not_utf_8_is_reported_and_the_others_are_read():
    reported: list[UnreadableObject] = []
    items = b'[{"metadata":{"name":"\xff"}},{"metadata":{"name":"b"}}]'
    body = b'{"metadata":{"resourceVersion":"7"},"items":%b}' % items
    assert [node.name for node in read_page(body, NODES, REQUEST, reported.append).items] == ["b"]
    assert [one.name for one in reported] == [""]


@pytest.mark.parametrize("name", INVALID)
def test_a_response_that_is_no_json_is_an_error_of_the_server(name: str):
    assert decode_object(INVALID[name], NODES, lambda _: None) is None
    with pytest.raises(ServerError, match="invalid response"):
        read_page(b'{"metadata":%b}' % INVALID[name], NODES, REQUEST, lambda _: None)


@pytest.mark.parametrize("name", INVALID)
@pytest.mark.parametrize("kind", [b"BOOKMARK", b"ERROR"])
def test_a_line_of_a_watch_that_is_no_json_needs_a_new_list(kind: bytes, name: str):
    line = b'{"type":"%b","object":{"message":%b,"metadata":{"resourceVersion":%b}}}'
    with pytest.raises(ListAgain):
        decode_watch_event(line % (kind, INVALID[name], INVALID[name]), NODES, REQUEST, lambda _: None)


@pytest.mark.parametrize(
    "headers",
    [
        b"Nats-Sequence: seven\r\nNats-Subject: a\r\nNats-Time-Stamp: 2026-01-01T00:00:00Z",
        b"Nats-Sequence: 7\r\nNats-Subject: a\r\nNats-Time-Stamp: today",
        b"Nats-Sequence: 7\r\nNats-Subject: a\r\nNats-Time-Stamp: 2026-01-01T00:00:00",
        b"Nats-Sequence: 7\r\nNats-Time-Stamp: 2026-01-01T00:00:00Z",
    ],
    ids=["sequence", "time", "time-zone", "subject"],
)
def test_headers_that_no_server_sends_are_an_error_of_the_bus(headers: bytes):
    with pytest.raises(BusError, match=r"^a: DIRECT.GET answered "):
        decode_direct_answer("a", parse_message(b"a", b"", b"{}", b"NATS/1.0\r\n" + headers + b"\r\n\r\n"))
