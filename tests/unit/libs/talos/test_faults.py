"""Faults of Talos calls, and the endpoint that a machine is queried through."""

from collections import Counter

import pytest
from h2.connection import H2Connection
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.machine import FaultKind, MachineFault
from libs.talos.bounded_protocol import HeaderEncoder
from libs.talos.connection import ConnectionRejected, translate_connection_error
from libs.talos.endpoint_selector import (
    BACKOFF_CAP_SECONDS,
    MAX_DETOURS,
    UNTRIED_SECONDS,
    EndpointSelector,
)
from libs.talos.faults import (
    MAX_MESSAGE_CHARS,
    Status,
    translate_status,
)
from libs.talos.machine_events import WatchOpening
from libs.talos.proto.generated import EventType
from libs.talos.proto.strict import InvalidResponse
from libs.talos.resources import ADDRESSES
from libs.talos.talosconfig import Endpoint
from tests.talos_actors import encode_event, encode_resource

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


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("not authorized", "os:reader"),
        ("no request forwarding", "not a control plane"),
        ("x" * 100_000, "PERMISSION_DENIED: xxx"),
    ],
)
def test_words_say_what_to_do_about_a_permission_in_short(message: str, words: str):
    fault = translate_status(Status("PERMISSION_DENIED", message), step="s", asked="e")
    assert words in fault.message
    assert len(fault.message) <= MAX_MESSAGE_CHARS


@pytest.mark.parametrize(("code", "message", "kind"), STATUSES)
def test_every_status_has_its_own_fault(code: str, message: str, kind: FaultKind):
    fault = translate_status(Status(code, message), step="Nodename", asked="10.0.0.1:50000 for 10.0.0.5")
    assert fault.kind == kind
    assert fault.step == "Nodename"
    assert fault.endpoint == "10.0.0.1:50000 for 10.0.0.5"
    reason = message.removeprefix('connection error: desc = "transport: ').removeprefix(
        "Error while dialing: "
    )
    assert reason.removesuffix('"') in fault.message
    assert "connection error" not in fault.message


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


def test_the_clock_is_blamed_only_where_a_certificate_failed():
    hint = "our certificate expired"
    rejected = ConnectionRejected()
    fault = translate_connection_error(rejected, endpoint="e:1", certificate_problem=hint)
    assert fault.kind == "certificate"
    assert fault.message.startswith("no connection to e:1: it closed the connection")
    assert fault.message.endswith("; our certificate expired")
    fault = translate_connection_error(OSError("no"), endpoint="e:1", certificate_problem=hint)
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


# ---- endpoints


A, B, C = (Endpoint(f"10.0.0.{i}", 50000) for i in (1, 2, 3))
ALL = (A, B, C)
FAULT = MachineFault(kind="refused", step="connect", message="no")


def test_a_machine_has_the_same_endpoint_every_time_whatever_their_order():
    choice = EndpointSelector()
    for i in range(50):
        machine = f"10.1.0.{i}"
        assert choice.candidates(ALL, machine, 0) == choice.candidates((C, A, B), machine, 9)


def test_machines_are_spread_over_the_endpoints():
    choice = EndpointSelector()
    firsts = Counter(choice.candidates(ALL, f"10.1.{i // 250}.{i % 250}", 0)[0] for i in range(900))
    assert all(200 < firsts[endpoint] < 400 for endpoint in ALL)


def test_when_an_endpoint_goes_only_its_own_machines_move():
    choice = EndpointSelector()
    machines = [f"10.1.0.{i}" for i in range(200)]
    before = {machine: choice.candidates(ALL, machine, 0)[0] for machine in machines}
    choice.mark_failed(A, FAULT, 0)
    for machine, endpoint in before.items():
        now = choice.candidates(ALL, machine, 0)
        assert now[-1] == A
        assert now[0] == endpoint or endpoint == A


def test_nobody_is_asked_while_all_are_put_aside():
    choice = EndpointSelector()
    choice.mark_failed(A, FAULT, 0)
    assert choice.candidates((A, B), "m", 0.1) == [B, A]
    choice.mark_failed(B, FAULT, 0.1)
    assert choice.candidates((A, B), "m", 0.2) == []
    assert choice.candidates((A, B), "m", 0.3) == [A, B]


def test_an_endpoint_that_refuses_is_put_aside_for_longer_and_longer_up_to_five_seconds():
    choice = EndpointSelector()
    now, waits = 100.0, []
    for _ in range(8):
        choice.mark_failed(A, FAULT, now)
        assert choice.candidates([A], "m", now) == []
        back = next(s / 100 for s in range(1, 1000) if choice.candidates([A], "m", now + s / 100))
        waits.append(back)
        now += back
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]


def test_many_callers_that_saw_the_same_refusal_are_one_refusal():
    choice = EndpointSelector()
    for _ in range(100):
        choice.mark_failed(A, FAULT, 10.0)
    assert choice.candidates([A], "m", 10.25) == [A]


def test_an_endpoint_that_works_again_starts_from_the_shortest_wait():
    choice = EndpointSelector()
    for now in (0.0, 10.0, 20.0):
        choice.mark_failed(A, FAULT, now)
    choice.mark_healthy(A)
    choice.mark_failed(A, FAULT, 30.0)
    assert choice.candidates([A], "m", 30.25) == [A]


def test_a_machine_that_was_not_reached_is_asked_by_the_next_endpoint():
    choice = EndpointSelector()
    order = choice.candidates(ALL, "m", 0)
    choice.use_next_endpoint("m")
    assert choice.candidates(ALL, "m", 0) == [order[1], order[2], order[0]]
    assert choice.candidates([A], "m", 0) == [A]


def test_the_fault_reported_is_that_of_the_endpoint_that_comes_back_first():
    choice = EndpointSelector()
    assert choice.get_first_fault(ALL) is None
    choice.mark_failed(A, FAULT, 1.0)
    choice.mark_failed(B, MachineFault(kind="timeout", step="connect", message="slow"), 0.5)
    fault = choice.get_first_fault(ALL)
    assert fault is not None
    assert fault.kind == "timeout"
    choice.reset()
    assert choice.get_first_fault(ALL) is None


def test_an_outage_lasts_over_the_attempts_that_fail_and_ends_with_the_first_that_does_not():
    choice, now = EndpointSelector(), 0.0
    assert choice.get_outage_fault((), now) is None
    for endpoint in ALL:
        assert choice.get_outage_fault(ALL, now) is None
        choice.mark_failed(endpoint, FAULT, now)
    for _ in range(10):
        now += BACKOFF_CAP_SECONDS
        assert choice.get_outage_fault(ALL, now + 2) == FAULT  # a client retries every few seconds
        for endpoint in ALL:
            choice.mark_failed(endpoint, FAULT, now)
    assert choice.get_outage_fault(ALL, now + BACKOFF_CAP_SECONDS + UNTRIED_SECONDS) is None  # not tried yet
    choice.mark_healthy(B)
    assert choice.get_outage_fault(ALL, now) is None


def test_the_memory_of_detours_is_bounded():
    choice = EndpointSelector()
    for i in range(MAX_DETOURS + 10):
        choice.use_next_endpoint(str(i))
    assert len(choice._detours) <= MAX_DETOURS


@given(st.lists(st.tuples(st.sampled_from("ad"), st.sampled_from(ALL), st.floats(0, 20)), max_size=30))
def test_no_endpoint_is_ever_given_up(steps: list[tuple[str, Endpoint, float]]):
    choice, now = EndpointSelector(), 0.0
    for step, endpoint, seconds in steps:
        now += seconds
        if step == "a":
            choice.mark_failed(endpoint, FAULT, now)
        else:
            choice.use_next_endpoint("m")
    assert sorted(map(str, choice.candidates(ALL, "m", now + BACKOFF_CAP_SECONDS))) == sorted(map(str, ALL))
