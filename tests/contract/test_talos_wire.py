"""Byte vectors of the Talos API: standard proto3 encodings of what we send and read."""

import re

import pytest

from libs.talos import resources
from libs.talos.proto.generated import WatchOptions, WatchRequest

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
