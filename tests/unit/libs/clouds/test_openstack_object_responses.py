"""Only the services' own errors prove that nothing has changed, or that an object is not there."""

from typing import Any

import msgspec
import pytest

from libs.clouds.balancers import WriteRejection
from libs.clouds.http_reader import HttpResponse
from libs.clouds.instances import NotFound, Unanswered
from libs.clouds.openstack.balancers.documents import Reference
from libs.clouds.openstack.object_responses import (
    OpenStackRejection,
    read_accepted,
    read_created,
    read_deletion,
    read_item,
    read_page,
)

ID = "5c1a7b4e-0000-4000-8000-000000000001"
PAGE = b"<html>nginx</html>"


def octavia(status: int, message: str) -> HttpResponse:
    document = {"faultcode": "Client", "faultstring": message, "debuginfo": None}
    return HttpResponse(status, {}, msgspec.json.encode(document))


def neutron(status: int, kind: str, message: str = "no") -> HttpResponse:
    document = {"NeutronError": {"type": kind, "message": message, "detail": ""}}
    return HttpResponse(status, {}, msgspec.json.encode(document))


@pytest.mark.parametrize(
    ("response", "kind", "is_immutable"),
    [
        (octavia(409, f"Load Balancer {ID} is immutable and cannot be updated."), "busy", True),
        (octavia(409, f"Invalid state PENDING_UPDATE of loadbalancer resource {ID}"), "busy", True),
        (octavia(409, f"Invalid state ERROR of loadbalancer resource {ID}"), "invalid", True),
        (octavia(409, "Another Listener is already using protocol_port 80"), "invalid", False),
        (octavia(403, "Quota has been met for resources: Load Balancer"), "limit", False),
        (octavia(403, "Policy does not allow this request to be performed."), "unauthorized", False),
        (octavia(400, "Subnet x not found."), "invalid", False),
        (octavia(501, "Provider 'ovn' does not support a requested option."), "invalid", False),
        (octavia(429, "too many"), "rate_limited", False),
        (neutron(409, "OverQuota"), "limit", False),
        (neutron(400, "RoutesExhausted"), "limit", False),
        (neutron(409, "FloatingIPPortAlreadyAssociated"), "invalid", False),
        (neutron(412, "RevisionNumberConstraintFailed"), "busy", False),
        (neutron(403, "PolicyNotAuthorized"), "unauthorized", False),
    ],
)
def test_a_rejection_has_its_kind_and_the_text_of_the_cloud(
    response: HttpResponse, kind: str, is_immutable: bool
):
    result = read_accepted(response)
    assert isinstance(result, OpenStackRejection)
    assert (result.kind, result.is_immutable) == (kind, is_immutable)
    assert result.reason.startswith(f"HTTP {response.status}: ")


@pytest.mark.parametrize(
    "response",
    [
        HttpResponse(200, {}, PAGE),
        HttpResponse(404, {}, PAGE),
        HttpResponse(409, {}, PAGE),
        octavia(500, "'dict' object has no attribute"),
        octavia(503, "maintenance"),
        HttpResponse(302, {}, b""),
        HttpResponse(400, {}, b'{"error": "of a proxy"}'),
    ],
)
def test_anything_else_proves_nothing(response: HttpResponse):
    for result in (read_accepted(response), read_created(response, "x"), read_deletion(response, ID)):
        assert isinstance(result, Unanswered)
        assert not isinstance(result, WriteRejection)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (octavia(500, "Provider 'ovn' reports error"), "HTTP 500 of Octavia: Provider 'ovn' reports error"),
        (neutron(503, "ServiceUnavailable"), "HTTP 503 ServiceUnavailable: "),
        (HttpResponse(502, {}, b"<html>"), "HTTP 502 of no service"),
    ],
)
def test_a_server_error_has_the_text_of_the_service(response: HttpResponse, reason: str):
    for result in (read_accepted(response), read_item(response, "loadbalancer", Reference, ID)):
        assert isinstance(result, Unanswered)
        assert result.outcome == "server_error"
        assert result.reason.startswith(reason)


def test_not_found_names_the_object():
    missing = octavia(404, f"Load Balancer {ID} not found.")
    assert read_item(missing, "loadbalancer", Reference, ID) == NotFound()
    assert read_deletion(missing, ID) == NotFound()
    address = neutron(404, "FloatingIPNotFound", f"Floating IP {ID} could not be found")
    assert read_item(address, "floatingip", Reference, ID) == NotFound()
    for other in (octavia(404, "Pool x not found."), HttpResponse(404, {}, PAGE), octavia(403, ID)):
        assert isinstance(read_item(other, "loadbalancer", Reference, ID), Unanswered)


@pytest.mark.parametrize("document", [{"loadbalancer": {"id": "other"}}, {"listener": {"id": ID}}, [], {}])
def test_an_answer_about_something_else_is_none(document: Any):
    response = HttpResponse(200, {}, msgspec.json.encode(document))
    assert isinstance(read_item(response, "loadbalancer", Reference, ID), Unanswered)


def test_a_list_has_pages():
    body: dict[str, Any] = {"pools": [{"id": ID}], "pools_links": [{"rel": "next", "href": "https://o/"}]}
    page = read_page(HttpResponse(200, {}, msgspec.json.encode(body)), "pools", Reference)
    assert not isinstance(page, Unanswered)
    assert (page.items, page.has_next) == ((Reference(ID),), True)
    body = {"pools": [{"id": ID}], "pools_links": [{"rel": "previous"}]}
    page = read_page(HttpResponse(200, {}, msgspec.json.encode(body)), "pools", Reference)
    assert not isinstance(page, Unanswered)
    assert not page.has_next
    assert isinstance(read_page(HttpResponse(200, {}, PAGE), "pools", Reference), Unanswered)
