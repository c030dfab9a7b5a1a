"""Gateways out of routes as Talos 1.14 has them, with several next hops, and out of what no Talos sends."""

import pytest

from libs.talos.inventory_reading import read_part
from libs.talos.proto.strict import InvalidResponse
from libs.talos.resources import INVENTORY
from libs.talos.validation import parse_resources
from libs.testbed.sim_machines.protobuf_wire import Field, encode

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
