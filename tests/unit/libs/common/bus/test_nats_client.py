"""Received bytes are parsed whatever they are, by the methods of nats-py that we replace."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client as NatsPyClient

from libs.common.bus.nats.client import Client, parse_message

REPLACED = sorted(name for name in vars(Client) if not name.startswith("__"))


@pytest.mark.parametrize("name", REPLACED)
def test_what_we_put_in_place_of_nats_pys_is_still_there_and_called_alike(name: str):
    ours, theirs = (getattr(owner, name) for owner in (Client, NatsPyClient))
    assert type(ours) is type(theirs)
    if isinstance(ours, property):
        ours, theirs = ours.fget, theirs.fget
    assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


def test_three_private_names_are_all_that_we_use():
    assert [name for name in REPLACED if name.startswith("_")] == ["_build_message", "_process_headers"]
    assert "_transport" in vars(NatsPyClient())


def read(block: bytes, data: bytes = b"") -> tuple[str, str, dict[str, str]]:
    message = parse_message(b"subject", b"", data, block)
    return message.status, message.description, dict(message.headers)


def test_headers_are_read_with_and_without_the_servers_own_word():
    assert read(b"") == ("", "", {})
    assert read(b"NATS/1.0\r\ntraceparent: 00-1-2-01\r\nA:b\r\n\r\n") == (
        "",
        "",
        {"traceparent": "00-1-2-01", "A": "b"},
    )
    assert read(b"NATS/1.0 503\r\n\r\n") == ("503", "", {})
    assert read(b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 7\r\n\r\n") == (
        "100",
        "Idle Heartbeat",
        {"Nats-Last-Consumer": "7"},
    )


@pytest.mark.parametrize(
    ("lines", "own"),
    [
        (b"", {}),
        (b"Nats-Expected-Last-Subject-Sequence: 7\r\n", {}),
        (b"Nats-Expected-Last-Subject-Sequence: 7\r\nNats-TTL: 50s\r\n", {}),
        (b"traceparent: 00-1-2-01\r\n", {"traceparent": "00-1-2-01"}),
        (b"Nats-Expected-Last-Subject-Sequence: 7\r\ntraceparent: 00-1\r\n", {"traceparent": "00-1"}),
        (b"traceparent: 00-1\r\nNats-TTL: 50s\r\n", {"traceparent": "00-1"}),
        (b" Nats-TTL : 50s\r\n", {}),
    ],
)
def test_headers_that_nats_defines_are_not_a_publishers_own(lines: bytes, own: dict[str, str]):
    assert dict(parse_message(b"s", b"", b"", b"NATS/1.0\r\n" + lines + b"\r\n").own_headers) == own


def test_a_header_of_a_publisher_is_not_the_servers_word():
    status, _, headers = read(b"NATS/1.0\r\nStatus: 404\r\n\r\n", b"{}")
    assert (status, headers) == ("", {"Status": "404"})


@given(st.binary(), st.binary(), st.binary(), st.binary())
def test_nothing_that_somebody_sends_ends_the_connection(subject, reply, data, block):
    assert parse_message(subject, reply, data, block).data == data
