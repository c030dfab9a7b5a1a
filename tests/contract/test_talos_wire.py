"""Byte vectors of the Talos API: standard proto3 encodings of what we send and read."""

import re

import pytest

from libs.common.contract.machine import AddressStatus, PlatformMetadata
from libs.talos import resources
from libs.talos.machine_reading import read_addresses, read_platform
from libs.talos.proto.generated import NetIpPrefix, WatchOptions, WatchRequest
from libs.talos.validation import parse_resources
from tests.cosi_answers import encode_answer, encode_resource

EVERYTHING = (
    resources.PLATFORM_METADATA,
    resources.SYSTEM_INFORMATION,
    resources.ADDRESSES,
    resources.NODENAME,
    resources.CLUSTER_INFO,
    resources.CONTROLLER_MANAGER,
    resources.MACHINE_STATUS,
    resources.MEMBERS,
)
ALL_ADDRESSES = resources.ResourceRef(
    step="", metric_label="", namespace=resources.ADDRESSES.namespace, type=resources.ADDRESSES.type
)


def test_a_get_request_is_what_talos_own_client_sends():
    assert resources.PLATFORM_METADATA.get().hex() == (
        "0a0772756e74696d65121b506c6174666f726d4d65746164617461732e74616c6f732e646576"
        "1a10706c6174666f726d6d657461646174612200"
    )


def test_a_list_request_carries_options_even_when_they_are_empty():
    assert ALL_ADDRESSES.list().hex() == (
        "0a076e6574776f726b121d4164647265737353746174757365732e6e65742e74616c6f732e6465761a00"
    )


def test_a_watch_request_with_options_is_the_known_bytes():
    request = WatchRequest(
        namespace="network",
        type="AddressStatuses.net.talos.dev",
        options=WatchOptions(bootstrap_contents=True),
        api_version=1,
    )
    assert bytes(request).hex() == (
        "0a076e6574776f726b121d4164647265737353746174757365732e6e65742e74616c6f732e646576220208012801"
    )


@pytest.mark.parametrize("asked", EVERYTHING, ids=lambda asked: asked.step)
def test_every_watch_request_has_options_and_version_1(asked: resources.ResourceRef):
    """Talos 1.12 and older panic without options, and keep ERRORED events to themselves with version 0."""
    request = WatchRequest.parse(asked.watch())
    assert request.options is not None
    assert b"\x22" in asked.watch()  # field 4 is on the wire even if it is empty
    assert request.api_version == 1
    assert request.id == (asked.id or None)  # presence makes it a watch on one resource


def test_what_is_watched_is_what_decides_about_a_node():
    assert [asked.step for asked in resources.WATCHED_RESOURCES] == [
        "PlatformMetadata",
        "AddressStatus",
        "Nodename",
    ]


PLATFORM = "0a036177733203692d313a156177733a2f2f2f75732d656173742d31612f692d314001"
IPV4 = "0a080a040a000005101812060a040a00000530023a04657468304002508001"
IPV6 = "0a140a1020010db8000000000000000000000005104030023a0465746830400a508005"
EXTERNAL = "0a080a04cb00710710203a0865787465726e616c4002"


def test_platform_metadata_are_read():
    answers = [_get(resources.PLATFORM_METADATA, PLATFORM)]
    assert read_platform(parse_resources(resources.PLATFORM_METADATA, answers)) == PlatformMetadata(
        platform="aws", instance_id="i-1", provider_id="aws:///us-east-1a/i-1", spot=True
    )


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        (IPV4, AddressStatus(address="10.0.0.5/24", link="eth0", flags=128)),
        (IPV6, AddressStatus(address="2001:db8::5/64", link="eth0", flags=0x280)),
        (EXTERNAL, AddressStatus(address="203.0.113.7/32", link="external")),
    ],
)
def test_addresses_are_read(spec: str, want: AddressStatus):
    answers = [encode_answer(encode_resource(resources.ADDRESSES, "eth0/some", bytes.fromhex(spec)))]
    assert read_addresses(parse_resources(resources.ADDRESSES, answers)) == (want,)


def test_an_address_with_a_zone_is_twenty_bytes():
    assert NetIpPrefix.parse(bytes.fromhex("0a14fe80000000000000000000000000000165746830")).ip[16:] == b"eth0"


@pytest.mark.parametrize(
    ("identifier", "asked_for"),
    [
        ("eth0/10.0.0.5/24", True),
        ("external/203.0.113.7/32", True),
        ("k/10.0.0.5/24", True),
        ("ku/10.0.0.5/24", True),
        ("kub0/10.0.0.5/24", True),
        ("kubespan/fd00::1/128", True),
        ("kube-bridge/10.0.0.5/24", True),
        ("kube-i/10.0.0.5/24", True),
        ("kube-ipvs0/10.96.0.1/32", False),
        ("kube-ipvs0/fd00::1/128", False),
        ("tapkube-ipvs0/10.0.0.5/24", True),
    ],
)
def test_service_addresses_of_ipvs_are_not_asked_for(identifier: str, asked_for: bool):
    """The real thing is Go's RE2 in the server: the integration test of looks asks it."""
    assert (re.search(resources.ADDRESSES.id_regexp, identifier) is not None) == asked_for


def _get(asked: resources.ResourceRef, spec: str) -> bytes:
    return encode_answer(encode_resource(asked, asked.id, bytes.fromhex(spec)))
