"""Which certificate requests a real and a simulated API server take.

Which ones the real server refuses by itself is in the table of tests/csr_cases.py.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from libs.common.contract.signing_request import KUBELET_SERVING
from libs.testbed.kubelets import NODE_GROUPS, HttpResponse, KubeletFleet
from libs.testbed.signing_requests import CSRS, SERVING_USAGES, build_signing_request, make_request_pem

USER = "system:node:asks"
GOOD = make_request_pem(common_name=USER, dns=["asks"], ips=["10.7.0.2"])


async def filed(
    admin: KubeletFleet,
    pem: bytes = GOOD,
    *,
    user: str | None = USER,
    groups: Sequence[str] = NODE_GROUPS,
    usages: Sequence[str] = SERVING_USAGES,
    signer: str = KUBELET_SERVING,
    also: dict[str, Any] | None = None,
) -> HttpResponse:
    """The answer to a request, which is deleted again if it was taken."""
    body = build_signing_request(pem, usages=usages, expiration_seconds=None, signer=signer)
    body["spec"] |= also or {}
    answer = await admin.request("POST", CSRS, as_user=user, as_groups=groups, body=body)
    if answer.status == 201:
        await admin.request("DELETE", f"{CSRS}/{answer.body['metadata']['name']}")
    return answer


@pytest.mark.parametrize(
    "pem",
    [
        b"some text\n" + GOOD,
        GOOD + b"some text",
        GOOD + GOOD,
        GOOD.rstrip(),
        GOOD.replace(b"\n", b"\r\n"),
        GOOD.replace(b"REQUEST-----\n", b"REQUEST-----\nA: b\n\n", 1),
        GOOD.replace(b"MII", b"!!!", 1) + GOOD,
        b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n" + GOOD,
    ],
    ids=["before", "behind", "two", "bare", "crlf", "headers", "broken-first", "unended-first"],
)
async def test_what_stands_around_the_first_whole_block_of_pem_is_not_looked_at(
    admin: KubeletFleet, pem: bytes
):
    assert (await filed(admin, pem)).status == 201


@pytest.mark.parametrize("usages", [["any"], ["client auth"], ["server auth", "digital signature"]])
async def test_usages_that_no_kubelet_asks_for_are_taken_all_the_same(admin: KubeletFleet, usages: list[str]):
    taken = await filed(admin, usages=usages)
    assert (taken.status, taken.body["spec"]["usages"]) == (201, usages)


async def test_whoever_else_may_ask_does_so_in_any_name(admin: KubeletFleet):
    pem = make_request_pem(common_name="system:node:victim", dns=["victim"], ips=[])
    for user, groups in (("joe", ["system:masters"]), (USER, ["system:masters"]), (None, [])):
        assert (await filed(admin, pem, user=user, groups=groups)).status == 201, user
    assert (await filed(admin, pem, signer="example.com/x")).status == 201  # no signer of kubelets


@pytest.mark.parametrize(
    ("user", "groups"),
    [
        ("joe", ["system:authenticated"]),
        ("joe", ["system:nodes"]),
        (USER, []),
        (USER, ["system:authenticated"]),
        ("system:node:", ["system:nodes"]),
    ],
)
async def test_a_node_is_one_by_its_name_and_its_group(admin: KubeletFleet, user: str, groups: list[str]):
    refused = await filed(admin, user=user, groups=groups)
    told = 'cannot create resource "certificatesigningrequests"'
    assert (refused.status, told in refused.body["message"]) == (403, True)


@pytest.mark.parametrize(
    ("groups", "written"),
    [
        (["system:nodes"], ["system:nodes", "system:authenticated"]),
        (["b", "system:authenticated", "system:nodes"], ["b", "system:authenticated", "system:nodes"]),
    ],
)
async def test_who_asks_is_written_by_the_server_whatever_was_sent(
    admin: KubeletFleet, groups: list[str], written: list[str]
):
    lies = {"username": "system:node:victim", "groups": ["system:masters"], "uid": "1", "extra": {"a": ["b"]}}
    taken = await filed(admin, groups=groups, also=lies)
    spec = taken.body["spec"]
    assert (taken.status, spec["username"], spec["groups"]) == (201, USER, written)
    assert "uid" not in spec
    assert "extra" not in spec


async def test_a_body_beyond_three_mebibytes_is_not_read(admin: KubeletFleet):
    refused = await filed(admin, GOOD + bytes(3 * 2**20))
    assert (refused.status, refused.body["reason"]) == (413, "RequestEntityTooLarge")
    assert (await filed(admin, GOOD + bytes(10**6))).status == 201  # much more than any kubelet sends
