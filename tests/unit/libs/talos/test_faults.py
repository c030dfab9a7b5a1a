"""Faults of calls, headers, and the opening of watches."""

import pytest
from h2.connection import H2Connection
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.machine import FaultKind
from libs.talos.bounded_protocol import HeaderEncoder
from libs.talos.faults import (
    MAX_MESSAGE_CHARS,
    Status,
    translate_connection_error,
    translate_status,
)
from libs.talos.machine_events import WatchOpening
from libs.talos.proto.generated import EventType
from libs.talos.proto.strict import InvalidResponse
from libs.talos.resources import ADDRESSES
from tests.cosi_answers import encode_event, encode_resource

DIAL = 'connection error: desc = "transport: Error while dialing: dial tcp 10.0.0.5:50000: connect: refused"'
HANDSHAKE = (
    'connection error: desc = "transport: authentication handshake failed: tls: failed to verify '
    "certificate: x509: "
)
STATUSES: list[tuple[str, str, FaultKind]] = [
    ("CANCELLED", "context canceled", "refused"),
    ("UNKNOWN", "some Go error", "internal"),
    ("INVALID_ARGUMENT", "node metadata must be single-valued", "internal"),
    ("DEADLINE_EXCEEDED", "context deadline exceeded", "timeout"),
    ("NOT_FOUND", "resource X(runtime/y@undefined) doesn't exist", "not_found"),
    ("PERMISSION_DENIED", "not authorized", "permission"),
    ("PERMISSION_DENIED", "no request forwarding", "permission"),
    ("PERMISSION_DENIED", 'resource type "X" is not supported', "not_found"),
    ("RESOURCE_EXHAUSTED", "too large", "internal"),
    ("INTERNAL", 'invalid target "10.0.0.5:1"', "internal"),
    ("UNAVAILABLE", DIAL, "refused"),
    ("UNAVAILABLE", HANDSHAKE + 'certificate is valid for 10.0.0.6, not 10.0.0.5"', "wrong_machine"),
    ("UNAVAILABLE", HANDSHAKE + "cannot validate: doesn't contain any IP SANs\"", "wrong_machine"),
    ("UNAVAILABLE", HANDSHAKE + 'certificate signed by unknown authority"', "certificate"),
    ("UNAVAILABLE", HANDSHAKE + 'certificate has expired or is not yet valid"', "certificate"),
    ("UNAVAILABLE", "Received :status = '503'", "refused"),
    ("UNAUTHENTICATED", "who are you?", "certificate"),
    ("99", "", "internal"),
]


@pytest.mark.parametrize(("code", "message", "kind"), STATUSES)
def test_every_status_has_its_own_fault(code: str, message: str, kind: FaultKind):
    fault = translate_status(Status(code, message), step="Nodename", asked="10.0.0.1:50000 for 10.0.0.5")
    assert fault.kind == kind
    assert fault.step == "Nodename"
    assert fault.endpoint == "10.0.0.1:50000 for 10.0.0.5"
    assert message in fault.message


@pytest.mark.parametrize(
    ("status", "another_may_answer"),
    [
        (Status("UNAVAILABLE", "Received :status = '503'"), True),
        (Status("PERMISSION_DENIED", "no request forwarding"), True),
        (Status("UNAVAILABLE", DIAL), False),
        (Status("PERMISSION_DENIED", "not authorized"), False),
        (Status("NOT_FOUND", "no request forwarding"), False),
    ],
)
def test_a_machine_that_is_down_is_not_the_endpoints_fault(status: Status, another_may_answer: bool):
    assert status.is_endpoint_error == another_may_answer


def test_words_say_what_to_do_about_a_permission():
    asked = {"step": "s", "asked": "e"}
    assert "os:reader" in translate_status(Status("PERMISSION_DENIED", "not authorized"), **asked).message
    assert (
        "not a control plane"
        in translate_status(Status("PERMISSION_DENIED", "no request forwarding"), **asked).message
    )


def test_a_server_cannot_make_a_fault_long():
    fault = translate_status(Status("INTERNAL", "x" * 100_000), step="s", asked="e")
    assert len(fault.message) == MAX_MESSAGE_CHARS


def test_the_clock_is_blamed_only_where_a_certificate_failed():
    hint = "our certificate expired"
    fault = translate_connection_error("certificate", "no", endpoint="e:1", certificate_problem=hint)
    assert fault.message == "no connection to e:1: no; our certificate expired"
    fault = translate_connection_error("refused", "no", endpoint="e:1", certificate_problem=hint)
    assert fault.message == "no connection to e:1: no"
    assert (fault.step, fault.endpoint, fault.kind) == ("connect", "e:1", "refused")


CONSTANT = [(b":method", b"POST"), (b":path", b"/cosi.resource.State/Get"), (b"te", b"trailers")]
HEADERS = st.tuples(st.sampled_from([b"node", b"grpc-timeout", b":authority"]), st.binary(max_size=40))


@given(
    blocks=st.lists(
        st.tuples(st.none() | st.integers(0, 4096), st.lists(HEADERS | st.sampled_from(CONSTANT))),
        max_size=20,
    )
)
def test_each_block_is_decoded_whatever_table_size_the_server_allowed_before(
    blocks: list[tuple[int | None, list[tuple[bytes, bytes]]]],
):
    encoder, decoder = HeaderEncoder(H2Connection().encoder), H2Connection().decoder
    for size, headers in blocks:
        if size is not None:
            encoder.header_table_size = size
            decoder.max_allowed_table_size = size
            assert encoder.header_table_size == size
        assert [tuple(each) for each in decoder.decode(encoder.encode(headers), raw=True)] == headers


def test_equal_headers_have_equal_bytes_in_each_call():
    encoder = HeaderEncoder(H2Connection().encoder)
    first = encoder.encode(CONSTANT)
    encoder.encode([(b"node", b"10.0.0.5")])
    assert encoder.encode(CONSTANT) == first


NOTHING = b""
NOOP = encode_event(EventType.NOOP)
END = encode_event(EventType.BOOTSTRAPPED)


def an_address(size: int) -> bytes:
    resource = encode_resource(ADDRESSES, "eth0/10.0.0.5/24", bytes(size))
    return encode_event(EventType.CREATED, resource=resource)


def test_a_watch_opens_after_all_there_is():
    opening = WatchOpening(ADDRESSES)
    for answer in (NOTHING, *[an_address(300)] * 700):
        assert not opening.apply(answer)
        assert not opening.is_open
    opening.apply(END)
    assert opening.is_open
    assert len(opening.initial_resources) == 700


@pytest.mark.parametrize("answer", [NOTHING, NOOP, an_address(60_000)], ids=["nothing", "noops", "large"])
def test_a_machine_that_never_comes_to_the_end_of_what_there_is_is_not_heard_out(answer: bytes):
    opening = WatchOpening(ADDRESSES)

    def listen() -> None:
        for _ in range(3000):
            opening.apply(answer)

    with pytest.raises(InvalidResponse):
        listen()
    assert sum(len(resource.spec) for resource in opening.initial_resources) <= 512 * 1024
