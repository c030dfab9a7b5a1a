"""An error in the API's own form says that nothing has changed; an action, that a change has begun."""

import msgspec
import pytest

from libs.clouds.balancers import WriteSuccess
from libs.clouds.hcloud.balancers.documents import Action
from libs.clouds.hcloud.balancers.write_responses import (
    ApiRejection,
    StartedAction,
    read_deletion,
    read_write,
)
from libs.clouds.http_reader import HttpResponse
from libs.clouds.instances import NotFound, Unanswered

ACTION = b'{"action": {"id": 5, "command": "add_target", "status": "running", "error": null}}'
STARTED = StartedAction(Action(id=5, command="add_target", status="running"))


def an_error(code: str, details: object = None) -> bytes:
    return msgspec.json.encode({"error": {"code": code, "message": "secret", "details": details}})


def respond(status: int, body: bytes, **headers: str) -> HttpResponse:
    return HttpResponse(status, headers, body)


@pytest.mark.parametrize("status", [200, 201])
def test_an_action_has_started(status: int):
    assert read_write(respond(status, ACTION), StartedAction) == STARTED
    assert read_deletion(respond(status, ACTION)) == STARTED


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (202, ACTION),
        (204, b""),
        (302, ACTION),
        (200, b"{}"),
        (201, b'{"action": {"id": 0, "command": "x", "status": "running"}}'),
        (201, b'{"action": {"id": 5, "command": "x", "status": "odd"}}'),
        (200, an_error("conflict")),
        (404, b"<html>"),
        (409, b"{}"),
        (409, b'{"error": {"code": "Bad Gateway"}}'),
        (429, b""),
        (422, an_error("unknown_error")),
        (408, an_error("timeout")),
        (500, an_error("conflict")),
        (503, an_error("resource_limit_exceeded")),
        (599, an_error("protected")),
    ],
)
def test_everything_else_leaves_the_outcome_unknown(status: int, body: bytes):
    answer = read_write(respond(status, body), StartedAction)
    assert isinstance(answer, Unanswered)
    assert "secret" not in answer.reason


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (409, "conflict", "busy"),
        (423, "locked", "busy"),
        (403, "resource_limit_exceeded", "limit"),
        (422, "resource_unavailable", "limit"),
        (423, "protected", "in_use"),
        (401, "unauthorized", "unauthorized"),
        (403, "token_readonly", "unauthorized"),
        (422, "a_new_code_2", "invalid"),
    ],
)
def test_an_error_of_the_api_is_a_rejection(status: int, code: str, kind: str):
    answer = read_write(respond(status, an_error(code)), StartedAction)
    assert isinstance(answer, ApiRejection)
    assert (answer.kind, answer.code, answer.reason) == (kind, code, f"{code}: secret")


@pytest.mark.parametrize(
    ("code", "is_of_a_target", "may_create"),
    [
        ("not_found", True, True),
        ("invalid_input", True, True),
        ("missing_ipv4", True, True),
        ("resolve_cloud_public_targets_error", True, True),
        ("resolve_cloud_private_targets_error", True, True),
        ("ip_not_owned", True, True),
        ("ip_not_in_vswitch_subnet", True, True),
        ("network_has_no_vswitch_subnet", True, True),
        ("cloud_resource_ip_not_allowed", True, True),
        ("server_not_attached_to_network", True, True),
        ("robot_unavailable", True, True),
        ("load_balancer_not_attached_to_network", False, True),
        ("load_balancer_public_interface_disabled", False, True),
        ("resource_limit_exceeded", False, False),
        ("targets_without_use_private_ip", False, False),
        ("a_new_code_2", False, False),
    ],
)
def test_only_known_codes_are_of_one_target(code: str, is_of_a_target: bool, may_create: bool):
    answer = read_write(respond(422, an_error(code)), StartedAction)
    assert isinstance(answer, ApiRejection)
    assert (answer.is_of_a_target, answer.may_create_without_targets) == (is_of_a_target, may_create)


def reject(code: str, details: object = None, message: str = "cloud target was not found") -> str:
    body = {"error": {"code": code, "message": message, "details": details}}
    answer = read_write(respond(422, msgspec.json.encode(body)), StartedAction)
    assert isinstance(answer, ApiRejection)
    return answer.reason


def test_a_rejection_has_the_code_the_fields_and_the_words_of_the_api():
    fields = [{"name": "services[0].http", "messages": []}, {"name": "<script>", "messages": []}]
    assert reject("invalid_input") == "invalid_input: cloud target was not found"
    assert reject("invalid_input", {"fields": fields[:1]}, "no") == "invalid_input (services[0].http): no"
    assert reject("invalid_input", {"fields": fields}, "no") == "invalid_input: no"
    assert reject("invalid_input", message="") == "invalid_input"
    assert reject("invalid_input", message="a\nb\x1b" + "c" * 300) == f"invalid_input: a b {'c' * 196}…"


def test_a_requested_pause_has_its_seconds():
    response = respond(429, an_error("rate_limit_exceeded"), **{"Retry-After": "30"})
    answer = read_write(response, StartedAction)
    assert isinstance(answer, ApiRejection)
    assert (answer.kind, answer.retry_after_seconds) == ("rate_limited", 30)


def test_a_deletion_is_done_or_not_found_only_in_the_apis_own_form():
    assert read_deletion(respond(204, b"")) == WriteSuccess()
    assert read_deletion(respond(404, an_error("not_found"))) == NotFound()
    assert isinstance(read_deletion(respond(410, an_error("not_found"))), ApiRejection)
    for other in (respond(404, b""), respond(204, b"<html>"), respond(200, b"")):
        assert isinstance(read_deletion(other), Unanswered)
