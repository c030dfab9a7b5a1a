"""Messages of machines: strict decoding, routes, stages, members."""

import pytest
from msgspec.structs import replace

from libs.talos.inventory_reading import read_part
from libs.talos.machine_events import WatchOpening
from libs.talos.machine_reading import read_addresses, read_member_names, read_stage
from libs.talos.proto.generated import EventType, NodenameSpec
from libs.talos.proto.strict import InvalidResponse, parse
from libs.talos.resources import ADDRESSES, INVENTORY, MACHINE_STATUS, MEMBERS
from libs.talos.validation import parse_resources
from libs.testbed.sim_machines.protobuf_wire import Field, encode
from tests.talos_actors import encode_answer, encode_event, encode_resource

NAME = encode({1: "web-1"})
FURTHER = encode({200: "unknown"})


def test_a_spec_with_fields_of_a_newer_talos_is_decoded():
    assert parse(NodenameSpec, NAME + FURTHER).nodename == "web-1"


@pytest.mark.parametrize("end", range(1, len(FURTHER)))
def test_an_unknown_field_that_is_cut_off_is_refused(end: int):
    with pytest.raises(InvalidResponse):
        parse(NodenameSpec, NAME + FURTHER[:end])


@pytest.mark.parametrize("tag", [0x00, 0x0B, 0x0C, 0x0E, 0x0F, 0x7B], ids=hex)
def test_field_number_0_and_groups_are_refused(tag: int):
    with pytest.raises(InvalidResponse):
        parse(NodenameSpec, NAME + bytes([tag, 0]))


RUNNING, RUNNING_AND_READY, SHUTTING_DOWN = b"\x08\x04", b"\x08\x04\x12\x02\x08\x01", b"\x08\x06"


def a_status(spec: bytes, *, identifier: str = "machine") -> bytes:
    return encode_resource(MACHINE_STATUS, identifier, spec)


def read(spec: bytes, **asked: str) -> str:
    return read_stage(parse_resources(MACHINE_STATUS, [encode_answer(a_status(spec, **asked))]))


def a_member(name: str, *, namespace: str = "cluster") -> bytes:
    members = replace(MEMBERS, namespace=namespace)
    return encode_answer(encode_resource(members, name, b"\x0a\x01x"))


def read_members(answers: list[bytes]) -> frozenset[str]:
    return read_member_names(parse_resources(MEMBERS, answers))


def updated(new: bytes, old: bytes) -> bytes:
    return encode_event(EventType.UPDATED, resource=a_status(new), old=a_status(old))


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
def test_the_stage_is_reported_in_talos_own_words(spec: bytes, stage: str):
    assert read(spec) == stage


@pytest.mark.parametrize("spec", [b"\x08", b"\x0a\x01x", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"])
def test_a_stage_that_no_talos_would_send_is_unreadable(spec: bytes):
    with pytest.raises(InvalidResponse):
        read(spec)


def test_the_status_of_something_else_is_unreadable():
    with pytest.raises(InvalidResponse):
        read(RUNNING, identifier="another")


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
    opening.apply(encode_event(EventType.CREATED, resource=a_status(RUNNING)))
    assert opening.is_open
    assert not opening.apply(updated(RUNNING_AND_READY, RUNNING))
    assert not opening.apply(updated(RUNNING, RUNNING_AND_READY))
    assert opening.apply(updated(SHUTTING_DOWN, RUNNING_AND_READY))


FIRST, SECOND = bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2))


def an_answer(spec: dict[int, Field], name: str = "inet4///1024") -> bytes:
    metadata: dict[int, Field] = {
        1: "network",
        2: "RouteStatuses.net.talos.dev",
        3: name,
        4: "1",
        6: "running",
    }
    return encode({1: {1: metadata, 2: {1: encode(spec)}}})


def read_gateways(answers: list[bytes]) -> tuple[str, ...]:
    gateways = read_part("RouteStatus", parse_resources(INVENTORY["RouteStatus"], answers)).gateways
    assert gateways is not None
    return gateways


def test_each_next_hop_of_a_route_is_a_gateway():
    hops: list[Field] = [{1: {1: SECOND}, 2: "eth1", 3: 1}, {1: {1: FIRST}, 2: "eth0", 3: 1}, {2: "wg0"}]
    assert read_gateways([an_answer({1: 2, 14: hops})]) == ("10.0.0.1", "10.0.0.2")


def test_an_ipv4_gateway_in_the_form_of_an_ipv6_one_is_the_same_gateway():
    mapped = bytes(10) + b"\xff\xff" + FIRST
    answers = [an_answer({4: {1: FIRST}}), an_answer({4: {1: mapped}}, "eth0/inet6/::ffff:10.0.0.1//1")]
    assert read_gateways(answers) == ("10.0.0.1",)


def test_an_unspecified_gateway_is_none():
    assert read_gateways([an_answer({4: {1: bytes(4)}}), an_answer({4: {1: bytes(16)}}, "other")]) == ()


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({4: {1: bytes(5)}}, "neither 4 nor 16 bytes"),
        ({4: 7}, "not made of bytes"),
        ({4: {1: 7}}, "not made of bytes"),
        ({14: 7}, "not made of bytes"),
        ({4: b"\x0a\xff"}, "cut off"),
    ],
)
def test_what_no_talos_would_send_is_refused(spec: dict[int, Field], why: str):
    with pytest.raises(InvalidResponse, match=why):
        read_gateways([an_answer(spec)])


def test_more_gateways_than_fit_into_a_message_are_refused():
    answers = [an_answer({4: {1: bytes((10, 0, n >> 8, n & 255))}}, str(n)) for n in range(1, 1026)]
    assert len(read_gateways(answers[:1024])) == 1024
    with pytest.raises(InvalidResponse, match="more than 1024 gateways"):
        read_gateways(answers)


def test_an_address_with_a_zone_is_refused():
    zoned = encode({1: {1: bytes.fromhex("fe800000000000000000000000000001") + b"eth0", 2: 64}})
    answer = encode_answer(encode_resource(ADDRESSES, "eth0/some", zoned))
    with pytest.raises(InvalidResponse, match="neither 4 nor 16 bytes"):
        read_addresses(parse_resources(ADDRESSES, [answer]))
