"""Responses of kube-apiserver and what follows from each; bytes that are no JSON."""

from typing import Any

import msgspec
import pytest

from libs.common.bus.delivery import (
    PermanentError,
    TemporaryError,
    failure_reason,
)
from libs.common.bus.nats.client import parse_message
from libs.common.bus.nats.jetstream import decode_direct_answer
from libs.common.bus.protocol import BusError
from libs.common.contract.node import Node
from libs.common.kube import errors
from libs.common.kube.errors import ServerError
from libs.common.kube.objects import Resource, UnreadableObject, decode_object, read_page
from libs.common.kube.request import Request
from libs.common.kube.watch_events import ListAgain, decode_watch_event

FAILED_TEST = "the server rejected our request due to an error in our request"


def a_status(
    *causes: tuple[str, str, str], reason: str = "Invalid", message: str = "no", **details: Any
) -> bytes:
    listed = [{"reason": r, "field": f, "message": m} for r, f, m in causes]
    return msgspec.json.encode(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": ({"causes": listed} if listed else {}) | details,
            "code": 422,
        }
    )


UID = ("FieldValueInvalid", "metadata.uid", 'Invalid value: "x": field is immutable')
TAINT = (
    "FieldValueDuplicate",
    "metadata.taints[2]",
    "Duplicate value: {}: taints must be unique by key and effect pair",
)
PROVIDER = (
    "FieldValueForbidden",
    "spec.providerID",
    'Forbidden: node updates may not change providerID except from "" to valid',
)
LABEL = (
    "FieldValueInvalid",
    "metadata.labels",
    'Invalid value: "b c": a valid label must be an empty string',
)
ADDRESS = ("FieldValueDuplicate", "status.addresses[1]", "Duplicate value: {}")


WEBHOOK = 'admission webhook "nodes.example.com" denied the request: '
POLICY = "ValidatingAdmissionPolicy 'notes' with binding 'notes' denied request: the note is immutable"
BY_POLICY = a_status(("", "", POLICY), message=f'nodes "web-1" is forbidden: {POLICY}')


@pytest.mark.parametrize("status", [404, 409, 410, 422])
@pytest.mark.parametrize(
    "body",
    [
        a_status(message=f"{WEBHOOK}no notes here"),
        a_status(UID, message=f"{WEBHOOK}no notes here"),
        a_status(reason="AlreadyExists", message=f"{WEBHOOK}no notes here"),
        BY_POLICY,
    ],
    ids=["webhook", "webhook with causes", "webhook with a reason", "policy"],
)
def test_a_denial_by_admission_says_nothing_of_the_object(status: int, body: bytes):
    assert type(errors.error_from(status, body, request="patch nodes web-1")) is errors.Invalid


@pytest.mark.parametrize(
    ("status", "kind"), [(403, errors.Forbidden), (429, errors.TooManyRequests), (500, errors.ServerError)]
)
def test_a_denial_with_another_status_keeps_its_meaning(status: int, kind: type[errors.KubeError]):
    body = a_status(message=f"{WEBHOOK}not now")
    assert type(errors.error_from(status, body, request="patch nodes web-1")) is kind


def test_a_value_that_quotes_a_denial_is_none():
    quoted = f'Node "web-1" is invalid: metadata.uid: Invalid value: {WEBHOOK!r}: field is immutable'
    error = errors.error_from(422, a_status(UID, message=quoted), request="patch nodes web-1")
    assert type(error) is errors.FenceFailed


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (422, a_status(message=FAILED_TEST), errors.FenceFailed),
        (422, a_status(UID, UID), errors.FenceFailed),
        (422, a_status(TAINT), errors.FenceFailed),
        (422, a_status(PROVIDER), errors.FenceFailed),
        (422, a_status(LABEL, LABEL), errors.Invalid),
        (422, a_status(ADDRESS), errors.Invalid),
        (422, a_status(LABEL, UID), errors.FenceFailed),
        (409, a_status(reason="AlreadyExists"), errors.AlreadyExists),
        (409, a_status(reason="Conflict"), errors.Conflict),
        (400, a_status(reason="BadRequest"), errors.Invalid),
        (401, a_status(reason="Unauthorized"), errors.Unauthorized),
        (403, a_status(reason="Forbidden"), errors.Forbidden),
        (404, a_status(reason="NotFound"), errors.NotFound),
        (410, a_status(reason="Expired"), errors.Gone),
        (413, b"too large", errors.Invalid),
        (429, a_status(reason="TooManyRequests"), errors.TooManyRequests),
        (500, a_status(reason="InternalError"), errors.ServerError),
        (503, b"<html>no upstream</html>", errors.ServerError),
        (302, b"", errors.ServerError),
        (502, b"\xff\xfe", errors.ServerError),
        (422, b"{" + b'"details":[' * 3, errors.FenceFailed),
        (500, b'{"details": {"causes": null}}', errors.ServerError),
        (500, b'{"a": ' + b"[" * 200_000, errors.ServerError),
    ],
)
def test_each_answer_has_one_meaning(status: int, body: bytes, kind: type[errors.KubeError]):
    error = errors.error_from(status, body, request="patch nodes web-1")
    assert type(error) is kind
    assert error.status == status
    assert str(error).startswith(f"patch nodes web-1: {status} ")


def test_causes_message_and_reason_are_kept():
    error = errors.error_from(422, a_status(LABEL, message="Node is invalid"), request="patch nodes web-1")
    assert (error.reason, error.message) == ("Invalid", "Node is invalid")
    assert [(cause.field, cause.reason) for cause in error.causes] == [
        ("metadata.labels", "FieldValueInvalid")
    ]


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [
        ("3", {}, 3.0),
        (None, {"retryAfterSeconds": 7}, 7.0),
        ("3", {"retryAfterSeconds": 7}, 3.0),
        (None, {}, None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", {}, None),
        ("-1", {}, None),
        ("²", {}, None),
        ("60", {}, 60.0),
        ("3600", {}, 60.0),
        ("9" * 400, {}, 60.0),
        (None, {"retryAfterSeconds": 3600}, 60.0),
        (None, {"retryAfterSeconds": 1e300}, 60.0),
        (None, {"retryAfterSeconds": -5}, 0.0),
    ],
)
def test_the_wait_that_the_server_asks_for_is_read_up_to_a_minute(
    header: str | None, details: dict[str, Any], seconds: float | None
):
    error = errors.error_from(
        429, a_status(reason="TooManyRequests", **details), request="r", retry_after=header
    )
    assert error.retry_after_seconds == seconds


@pytest.mark.parametrize("kind", errors.KubeError.__subclasses__())
def test_every_error_says_whether_a_retry_can_help(kind: type[errors.KubeError]):
    assert issubclass(kind, TemporaryError) != issubclass(kind, PermanentError)
    assert issubclass(kind, PermanentError) == (kind is errors.Invalid)


def test_an_error_without_a_reason_of_kubernetes_is_counted_under_its_kind():
    assert failure_reason(errors.Unreachable("no")) == "Unreachable"
    assert failure_reason(errors.error_from(502, b"<html>", request="r")) == "ServerError"


# ---- bytes that are no JSON


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
