"""What comes over the wire is read whatever it is; what would be another command is not sent."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client as NatsPyClient
from nats.errors import BadHeaderError, BadSubjectError, ConnectionClosedError, MaxPayloadError

from libs.common.bus.nats.client import Client, parse_message


@pytest.mark.parametrize(
    "name", sorted(n for n in vars(Client) if n.startswith("_process") or n == "_flush_pending")
)
def test_what_we_put_in_place_of_nats_pys_is_still_there_and_called_alike(name: str):
    ours, theirs = getattr(Client, name), getattr(NatsPyClient, name)
    assert inspect.iscoroutinefunction(theirs)
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


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


def test_a_header_of_a_publisher_is_not_the_servers_word():
    status, _, headers = read(b"NATS/1.0\r\nStatus: 404\r\n\r\n", b"{}")
    assert (status, headers) == ("", {"Status": "404"})


@given(st.binary(), st.binary(), st.binary(), st.binary())
def test_nothing_that_somebody_sends_ends_the_connection(subject, reply, data, block):
    assert parse_message(subject, reply, data, block).data == data


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB b 0", "a\tb", "a\nb"])
def test_a_subject_that_would_be_another_command_is_refused(subject: str):
    with pytest.raises(BadSubjectError):
        Client(encrypted=False).send(subject, b"", "", None)


@pytest.mark.parametrize("headers", [{"a": "b\r\nc: d"}, {"a\r\nb": "c"}, {"a": "b\nc"}])
def test_a_header_that_would_be_two_is_refused(headers: dict[str, str]):
    with pytest.raises(BadHeaderError):
        Client(encrypted=False).send("subject", b"", "", headers)


def test_what_the_server_would_end_the_connection_for_is_not_sent():
    with pytest.raises(MaxPayloadError):
        Client(encrypted=False).send("subject", bytes(2 * 1024 * 1024), "", None)


def test_nothing_is_queued_without_a_connection():
    with pytest.raises(ConnectionClosedError):
        Client(encrypted=False).send("subject", b"", "", None)
