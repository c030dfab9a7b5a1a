"""Certificate requests that the API server refuses, and hostile ones that it and its signer let pass."""

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec
import pytest

from libs.common.contract.signing_request import KUBELET_SERVING
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import NODE_GROUPS, HttpResponse, KubeletFleet, RequestRejected
from libs.testbed.signing_requests import (
    CSRS,
    SERVING_USAGES,
    SigningOutcome,
    build_signing_request,
    make_request_pem,
)
from services.csr.core.certificate_request import CertificateRequest, parse_request
from tests.csr_cases import CASES, CsrCase
from tests.integration.csr_cluster import names_in, request_case

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


# ---- hostile requests


# By the message of the condition Failed.
FAILED = {
    "Email subjectAltNames are not allowed": ("an e-mail address",),
    "URI subjectAltNames are not allowed": ("a URI",),
    "DNS or IP subjectAltName is required": (
        "only an e-mail address",
        "nothing",
        "an empty list",
        "Microsoft's attribute",
    ),
    "subject organization is not system:nodes": (
        "no organization",
        "masters",
        "nodes and masters",
        "nodes and masters in one",
    ),
    "usages did not match [digital signature key encipherment server auth]": (
        "no digital signature",
        "for a client",
        "for a server and a client",
        "to sign certificates, by usage",
        "for any use",
    ),
}


class Verdict(msgspec.Struct, frozen=True):
    """How far a request came: refused with these words, or approved by an admin, and then this."""

    refused: str = ""
    outcome: SigningOutcome | None = None


async def verdict_on(case: CsrCase, kubelets: KubeletFleet) -> Verdict:
    try:
        name = await request_case(kubelets, case)
    except RequestRejected as refused:
        return Verdict(f"{refused.response.status} {refused.response.body['message']}")
    try:
        await kubelets.approve(name)
        return Verdict(outcome=await kubelets.wait_for_outcome(name))
    finally:
        await kubelets.request("DELETE", f"{CSRS}/{name}")


@pytest.fixture(scope="module")
async def verdicts(real_signer: ControlPlane) -> dict[str, Verdict]:
    """All cases at once, except those of other signers, which have no controller here, and those of users
    whose names no HTTP header can carry.
    """
    asked = [case for case in CASES if case.signer == KUBELET_SERVING and case.username.isprintable()]
    async with KubeletFleet.start(real_signer) as signing:
        found = await asyncio.gather(*(verdict_on(case, signing) for case in asked))
    return {case.name: verdict for case, verdict in zip(asked, found, strict=True)}


def test_the_api_server_refuses_by_itself_what_the_table_says(verdicts: dict[str, Verdict]):
    # None stands for a requester whom the server would not have written into such a request.
    wanted = {case.name for case in CASES if case.refused_by_api is not False} & verdicts.keys()
    refused = {name: verdict.refused for name, verdict in verdicts.items() if verdict.refused}
    assert refused.keys() == wanted, {name: refused.get(name) for name in refused.keys() ^ wanted}
    assert all(why.startswith(("403 ", "422 ")) for why in refused.values())


def test_the_signer_fails_these_and_signs_all_others(verdicts: dict[str, Verdict]):
    taken = {name: verdict.outcome for name, verdict in verdicts.items() if verdict.outcome}
    failed = {name: of.conditions["Failed"]["message"] for name, of in taken.items() if not of.certificate}
    assert failed == {name: why for why, names in FAILED.items() for name in names if name in verdicts}
    assert len(taken) - len(failed) > 90


def test_what_csr_approves_is_issued_for_what_csr_has_read(verdicts: dict[str, Verdict]):
    for case in CASES:
        if case.expected == "approve":
            asked, outcome = parse_request(case.pem()), verdicts[case.name].outcome
            assert isinstance(asked, CertificateRequest), case.name
            assert outcome, case.name
            assert names_in(outcome) == (list(asked.dns_names), list(asked.ips)), case.name


def test_names_of_others_would_be_signed_if_csr_did_not_refuse_them(verdicts: dict[str, Verdict]):
    expected = {case.name: case.expected for case in CASES}
    signed = {
        name: list(chain(*names_in(verdict.outcome)))
        for name, verdict in verdicts.items()
        if verdict.outcome and verdict.outcome.certificate and expected[name] != "approve"
    }
    assert len(signed) > 70
    everything = {one for names in signed.values() for one in names}
    assert {"db-1", "10.0.0.9", "kubernetes", "*", "127.0.0.1", "169.254.7.7", "10.0.0.11"} <= everything
    assert signed["another request before it"] == ["db-1", "10.0.0.9"]  # the first block of PEM counts
    assert signed["db-2 inside IPv6"] == ["web-1", "10.0.0.5", "10.0.0.11"]
