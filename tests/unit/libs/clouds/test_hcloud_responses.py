"""What a response of Hetzner Cloud means: a table of responses that mean nothing."""

from typing import Any

import msgspec
import pytest

from libs.clouds.hcloud.responses import (
    Entity,
    Page,
    Pagination,
    Server,
    build_instance,
    explain_contradiction,
    read_item,
    read_page,
    read_rate_limit,
)
from libs.clouds.http_reader import HttpResponse
from libs.clouds.instances import NotFound, RateLimit, Unanswered
from libs.testbed.clouds.hcloud.objects import make_server


def respond(status: int, document: Any) -> HttpResponse:
    return HttpResponse(status, {}, msgspec.json.encode(document))


def an_error(code: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": "token abc is not valid"}}


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        (respond(404, an_error("not_found")), None),
        (respond(404, an_error("NotFound")), "malformed"),
        (respond(404, an_error(404)), "malformed"),
        (respond(404, {}), "malformed"),
        (respond(404, "not_found"), "malformed"),
        (HttpResponse(404, {}, b"<html>not_found</html>"), "malformed"),
        (HttpResponse(404, {}, b""), "malformed"),
        (respond(410, an_error("not_found")), "malformed"),
        (respond(400, an_error("not_found")), "malformed"),
        (respond(200, an_error("not_found")), "malformed"),
        (respond(201, {"server": make_server(5, "a")}), "malformed"),
        (respond(500, an_error("not_found")), "server_error"),
        (respond(401, an_error("not_found")), "unauthorized"),
        (respond(403, an_error("not_found")), "forbidden"),
        (respond(429, an_error("not_found")), "rate_limited"),
    ],
)
def test_only_a_404_with_the_code_of_the_api_says_that_there_is_no_object(
    response: HttpResponse, outcome: str | None
):
    answer = read_item(response, "server", Server)
    if outcome is None:
        assert answer == NotFound()
        return
    assert isinstance(answer, Unanswered)
    assert answer.outcome == outcome
    assert "abc" not in answer.reason  # the API's text may repeat what was sent


WITHOUT = [{"id": None}, {"name": None}, {"status": None}, {"server_type": None}, {"location": None}]
WRONG = [
    {"id": "5"},
    {"id": 5.5},
    {"id": True},
    {"id": 0},
    {"id": -5},
    {"name": ""},
    {"name": 7},
    {"status": ["off"]},
    {"public_net": None},
    {"private_net": {}},
    {"private_net": [{"network": 5}]},
]


@pytest.mark.parametrize("fields", [*WITHOUT, *WRONG], ids=str)
def test_a_server_with_a_missing_or_wrong_field_is_no_answer(fields: dict[str, Any]):
    server = make_server(5, "web-1") | fields
    server = {name: value for name, value in server.items() if fields not in WITHOUT or value is not None}
    answers = (
        read_item(respond(200, {"server": server}), "server", Server),
        read_page(respond(200, a_page(server)), "servers", Server),
    )
    for answer in answers:
        assert isinstance(answer, Unanswered)
        assert answer.outcome == "malformed"


@pytest.mark.parametrize(
    "net", [{"ipv4": "192.0.2"}, {"ipv6": "2001:db8::1"}, {"private": [(5, "")]}], ids=str
)
def test_a_server_with_an_address_that_is_none_is_no_answer(net: dict[str, Any]):
    found = msgspec.convert(make_server(5, "web-1", **net), Server)
    assert isinstance(build_instance(found), Unanswered)


def a_page(*servers: dict[str, Any], **pagination: Any) -> dict[str, Any]:
    numbers = {"page": 1, "per_page": 50, "next_page": None, "last_page": 1, "total_entries": len(servers)}
    return {"servers": list(servers), "meta": {"pagination": numbers | pagination}}


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"servers": []},
        {"servers": [], "meta": {}},
        {"servers": [], "meta": {"pagination": {"page": 1}}},
        {"servers": None} | {"meta": a_page()["meta"]},
        {"meta": a_page()["meta"]},
        {"networks": []} | {"meta": a_page()["meta"]},
        a_page(page="1"),
        [],
    ],
    ids=str,
)
def test_a_list_without_items_or_position_is_no_answer(document: Any):
    assert isinstance(read_page(respond(200, document), "servers", Server), Unanswered)


def a_list(*sizes: int, **changed: Any) -> list[Page[Entity]]:
    """Pages of these sizes; `changed` are fields of the last one."""
    total, last = sum(sizes), len(sizes)
    pages, ids = [], iter(range(1, total + 1))
    for number, size in enumerate(sizes, 1):
        position = Pagination(number, 50, number + 1 if number < last else None, last, total)
        pages.append(Page(tuple(Entity(next(ids)) for _ in range(size)), position))
    pages[-1] = msgspec.structs.replace(
        pages[-1], pagination=msgspec.structs.replace(pages[-1].pagination, **changed)
    )
    return pages


@pytest.mark.parametrize(
    ("pages", "problem"),
    [
        (a_list(0), ""),
        (a_list(50), ""),
        (a_list(50, 50, 3), ""),
        (a_list(50, 50, 3)[:2], ""),  # so far
        (a_list(3, last_page=None, total_entries=None), ""),
        (a_list(50, 3, page=1), "page 1 of 50 instead of page 2 of 50"),
        (a_list(3, page=2), "page 2 of 50 instead of page 1 of 50"),
        (a_list(3, per_page=25), "page 1 of 25 instead of page 1 of 50"),
        (a_list(50, 3, total_entries=54), "the list changed while it was read"),
        (a_list(50, 3, last_page=3), "the list changed while it was read"),
        (a_list(3, total_entries=4), "the list ends too early"),
        (a_list(3, last_page=2), "the list ends too early"),
        (a_list(51), "the list ends too early"),
        (a_list(49, 3)[:1], "a page is not full"),
        (a_list(50, next_page=1), "a page is not full"),
        (a_list(50, next_page=3), "a page is not full"),
    ],
)
def test_pages_that_contradict_one_another_are_no_list(pages: list[Page[Entity]], problem: str):
    assert explain_contradiction(pages) == problem


@pytest.mark.parametrize(
    ("location", "zone"), [("fsn1", "fsn1-dc14"), ("hel1", "hel1-dc2"), ("a-new-one", "a-new-one")]
)
def test_the_zone_is_what_the_clouds_own_controller_writes(location: str, zone: str):
    document = make_server(5, "web-1")
    document["location"]["name"] = location
    built = build_instance(msgspec.convert(document, Server))
    assert not isinstance(built, Unanswered)
    assert (built.region, built.zone) == (location, zone)


@pytest.mark.parametrize("status", ["running", "deleting", "migrating", "unknown", "a-new-one"])
def test_only_a_server_that_is_off_is_shut_down(status: str):
    for each, is_shut_down in ((status, False), ("off", True)):
        built = build_instance(msgspec.convert(make_server(5, "web-1", status=each), Server))
        assert not isinstance(built, Unanswered)
        assert built.is_shut_down == is_shut_down


@pytest.mark.parametrize(
    ("limit", "remaining", "reset", "expected"),
    [
        ("3600", "3599", "1001", (RateLimit(3600, 3599), 1.0)),
        ("3600", "0", "900", (RateLimit(3600, 0), -100.0)),
        ("3600", "3601", "1001", None),
        ("0", "0", "1001", None),
        ("3600", "-1", "1001", None),
        ("3600", "", "1001", None),
        ("3600", "1", "soon", None),
        ("3600", "1", "9" * 5000, None),
        ("\u0663", "1", "1001", None),
    ],
)
def test_the_rate_limit_is_read_from_three_numbers(
    limit: str, remaining: str, reset: str, expected: tuple[RateLimit, float] | None
):
    headers = {"RateLimit-Limit": limit, "RateLimit-Remaining": remaining, "RateLimit-Reset": reset}
    assert read_rate_limit(HttpResponse(200, headers, b""), unix_time=1000.0) == expected
