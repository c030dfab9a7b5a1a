"""Which certificate requests a real and a simulated API server take, and which they refuse by themselves."""

import base64
from collections.abc import Sequence
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_csr

from libs.common.contract.signing_request import KUBELET_SERVING
from libs.testbed.kubelets import NODE_GROUPS, HttpResponse, KubeletFleet
from libs.testbed.signing_requests import CSRS, SERVING_USAGES, build_signing_request, make_request_pem

USER = "system:node:asks"
GOOD = make_request_pem(common_name=USER, dns=["asks"], ips=["10.7.0.2"])
NOT_PEM = "PEM block type must be CERTIFICATE REQUEST"


def in_pem(der: bytes) -> bytes:
    lines = base64.encodebytes(der)
    return b"-----BEGIN CERTIFICATE REQUEST-----\n" + lines + b"-----END CERTIFICATE REQUEST-----\n"


DER = load_pem_x509_csr(GOOD).public_bytes(Encoding.DER)
FORGED = in_pem(DER[:-1] + bytes([DER[-1] ^ 1]))


async def filed(
    admin: KubeletFleet,
    pem: bytes = GOOD,
    *,
    user: str | None = USER,
    groups: Sequence[str] = NODE_GROUPS,
    usages: Sequence[str] = SERVING_USAGES,
    seconds: int | None = None,
    signer: str = KUBELET_SERVING,
    also: dict[str, Any] | None = None,
) -> HttpResponse:
    """The answer to a request, which is deleted again if it was taken."""
    body = build_signing_request(pem, usages=usages, expiration_seconds=seconds, signer=signer)
    body["spec"] |= also or {}
    answer = await admin.request("POST", CSRS, as_user=user, as_groups=groups, body=body)
    if answer.status == 201:
        await admin.request("DELETE", f"{CSRS}/{answer.body['metadata']['name']}")
    return answer


def causes(answer: HttpResponse) -> list[tuple[str, str]]:
    return [(cause["field"], cause["reason"]) for cause in answer.body["details"]["causes"]]


@pytest.mark.real_only
@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"garbage",
        GOOD[:-200],
        GOOD.replace(b"CERTIFICATE REQUEST", b"CERTIFICATE"),
        GOOD.replace(b"CERTIFICATE REQUEST", b"NEW CERTIFICATE REQUEST"),
        GOOD.replace(b"CERTIFICATE REQUEST", b"CERTIFICATE") + GOOD,
        in_pem(DER[:-5]),
        in_pem(DER + b"abc"),
    ],
    ids=["empty", "garbage", "cut", "other", "new", "other-first", "short", "trailing"],
)
async def test_what_is_no_request_is_forbidden_to_a_node_and_invalid_from_an_admin(
    admin: KubeletFleet, pem: bytes
):
    of_node = await filed(admin, pem)
    assert (of_node.status, "unable to parse csr: " in of_node.body["message"]) == (403, True)
    of_admin = await filed(admin, pem, user=None)
    assert (of_admin.status, causes(of_admin)) == (422, [("spec.request", "FieldValueInvalid")])


@pytest.mark.real_only
async def test_a_request_that_another_key_signed_is_invalid(admin: KubeletFleet):
    refused = await filed(admin, FORGED)
    assert (refused.status, causes(refused)) == (422, [("spec.request", "FieldValueInvalid")])


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


@pytest.mark.real_only
@pytest.mark.parametrize(
    ("usages", "field", "reason"),
    [
        ([], "spec.usages", "FieldValueRequired"),
        (["bogus"], "spec.usages[0]", "FieldValueNotSupported"),
        (["server auth", ""], "spec.usages[1]", "FieldValueNotSupported"),
        (["server auth", "server auth"], "spec.usages[1]", "FieldValueDuplicate"),
    ],
)
async def test_usages_are_known_ones_each_once(
    admin: KubeletFleet, usages: list[str], field: str, reason: str
):
    refused = await filed(admin, usages=usages)
    assert (refused.status, causes(refused)) == (422, [(field, reason)])


@pytest.mark.parametrize("usages", [["any"], ["client auth"], ["server auth", "digital signature"]])
async def test_usages_that_no_kubelet_asks_for_are_taken_all_the_same(admin: KubeletFleet, usages: list[str]):
    taken = await filed(admin, usages=usages)
    assert (taken.status, taken.body["spec"]["usages"]) == (201, usages)


@pytest.mark.real_only
@pytest.mark.parametrize("seconds", [-1, 0, 599])
async def test_a_life_of_less_than_ten_minutes_is_invalid(admin: KubeletFleet, seconds: int):
    refused = await filed(admin, seconds=seconds)
    told = f"Invalid value: {seconds}: may not specify a duration less than 600 seconds (10 minutes)"
    assert (refused.status, refused.body["details"]["causes"][0]["message"]) == (422, told)


@pytest.mark.real_only
@pytest.mark.parametrize(
    ("signer", "reason"),
    [
        ("", "FieldValueRequired"),
        ("foo", "FieldValueInvalid"),
        ("a/b", "FieldValueInvalid"),
        ("Example.com/x", "FieldValueInvalid"),
        ("kubernetes.io/kubelet-serving/x", "FieldValueInvalid"),
        ("kubernetes.io/legacy-unknown", "FieldValueInvalid"),
    ],
)
async def test_a_signer_is_a_domain_and_a_path(admin: KubeletFleet, signer: str, reason: str):
    refused = await filed(admin, signer=signer)
    assert (refused.status, causes(refused)) == (422, [("spec.signerName", reason)])


@pytest.mark.real_only
@pytest.mark.parametrize("common_name", ["", "joe", "system:node:victim", "system:node:ASKS", "system:node:"])
async def test_a_node_asks_for_itself_only(admin: KubeletFleet, common_name: str):
    refused = await filed(admin, make_request_pem(common_name=common_name, dns=["asks"], ips=[]))
    told = "can only create a node CSR with CN=system:node:asks"
    assert (refused.status, told in refused.body["message"]) == (403, True)


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


@pytest.mark.real_only
async def test_a_client_certificate_of_the_administrators_group_cannot_be_asked_for(admin: KubeletFleet):
    signer, usages = "kubernetes.io/kube-apiserver-client", ["client auth"]
    pem = make_request_pem(common_name="joe", dns=[], ips=[], organizations=["system:masters"])
    refused = await filed(admin, pem, user=None, signer=signer, usages=usages)
    assert (refused.status, refused.body["reason"]) == (403, "Forbidden")


async def test_a_body_beyond_three_mebibytes_is_not_read(admin: KubeletFleet):
    refused = await filed(admin, GOOD + bytes(3 * 2**20))
    assert (refused.status, refused.body["reason"]) == (413, "RequestEntityTooLarge")
    assert (await filed(admin, GOOD + bytes(10**6))).status == 201  # much more than any kubelet sends
