"""Requests for certificates from their creation to the signer."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from libs.testbed.kubelets import JSON_PATCH, KubeletFleet, RequestRejected, SimKubelet
from libs.testbed.signing_requests import APPROVED, CSRS, SigningOutcome

ASKS = SimKubelet(name="asks", ips=("10.7.0.2", "fd00:7::2"))


@pytest.fixture
async def name(admin: KubeletFleet) -> AsyncIterator[str]:
    """A pending request of a kubelet."""
    made = await admin.request_certificate(ASKS)
    yield made
    await admin.request("DELETE", f"{CSRS}/{made}")


async def approve(
    admin: KubeletFleet, name: str, *operations: dict[str, Any], as_node: str | None = None
) -> Any:
    untouched = {"op": "test", "path": "/status/conditions", "value": None}
    first = {"op": "add", "path": "/status/conditions", "value": [APPROVED]}
    return await admin.request(
        "PATCH",
        f"{CSRS}/{name}/approval",
        as_node=as_node,
        body=list(operations) or [untouched, first],
        content_type=JSON_PATCH,
    )


async def test_an_approval_is_fenced_and_stamped(admin: KubeletFleet, name: str):
    approved = await approve(admin, name)
    assert approved.status == 200
    condition = approved.body["status"]["conditions"][0]
    assert {key: condition[key] for key in APPROVED} == APPROVED
    assert condition["lastUpdateTime"]
    assert condition["lastTransitionTime"]
    again = await approve(admin, name)
    assert (again.status, "causes" in again.body["details"]) == (422, False)


@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        ({"op": "remove", "path": "/status/conditions/0"}, {"status.conditions"}),
        (
            {"op": "add", "path": "/status/conditions/-", "value": APPROVED | {"type": "Denied"}},
            {"status.conditions"},
        ),
        pytest.param(
            {"op": "add", "path": "/status/conditions/-", "value": {"type": "Approved", "status": "False"}},
            {"status.conditions[1].status", "status.conditions[1].type"},
            marks=pytest.mark.real_only,
        ),
    ],
)
async def test_what_was_approved_stays_approved(
    admin: KubeletFleet, name: str, operation: dict[str, Any], fields: set[str]
):
    await approve(admin, name)
    refused = await approve(admin, name, operation)
    assert refused.status == 422
    assert {cause["field"] for cause in refused.body["details"]["causes"]} == fields


async def test_an_approval_changes_nothing_but_conditions_and_metadata(admin: KubeletFleet, name: str):
    before = (await admin.request("GET", f"{CSRS}/{name}")).body
    after = await approve(
        admin,
        name,
        {"op": "add", "path": "/spec/signerName", "value": "example.com/other"},
        {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
    )
    assert after.body["spec"] == before["spec"]
    assert after.body["metadata"]["labels"] == {"a": "b"}


async def test_a_node_may_not_approve_its_own_request(admin: KubeletFleet, name: str):
    refused = await approve(admin, name, as_node="asks")
    assert (refused.status, refused.body["reason"]) == (403, "Forbidden")
    assert 'cannot patch resource "certificatesigningrequests/approval"' in refused.body["message"]


USER = "system:node:asks"
YEAR = timedelta(days=365)


async def approved(kubelets: KubeletFleet, name: str) -> SigningOutcome:
    try:
        await kubelets.approve(name)
        return await kubelets.wait_for_outcome(name)
    finally:
        await kubelets.request("DELETE", f"{CSRS}/{name}")


def names_in(certificate: x509.Certificate) -> list[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


async def test_what_was_approved_is_issued_for_the_names_that_were_asked_for(signing: KubeletFleet):
    outcome = await approved(signing, await signing.request_certificate(ASKS))
    certificate = x509.load_pem_x509_certificate(outcome.certificate)
    assert names_in(certificate) == ["asks", "10.7.0.2", "fd00:7::2"]
    [common_name] = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert (common_name.value, set(outcome.conditions)) == (USER, {"Approved"})


@pytest.mark.parametrize(
    ("asked_seconds", "lives"),
    [
        (None, YEAR - timedelta(minutes=5)),
        (600, timedelta(minutes=10)),
        (8 * 3600 - 1, timedelta(seconds=8 * 3600 - 1)),
        (8 * 3600, timedelta(hours=8, minutes=-5)),
        (2**31 - 1, YEAR - timedelta(minutes=5)),
    ],
)
async def test_a_certificate_lives_as_long_as_was_asked_but_not_longer_than_a_year(
    signing: KubeletFleet, asked_seconds: int | None, lives: timedelta
):
    name = await signing.request_certificate(ASKS, expiration_seconds=asked_seconds)
    certificate = x509.load_pem_x509_certificate((await approved(signing, name)).certificate)
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    assert lives - timedelta(seconds=20) < left <= lives
    begun = certificate.not_valid_before_utc - datetime.now(UTC)
    assert timedelta(seconds=-320) < begun <= timedelta(minutes=-5)


async def test_what_was_denied_is_never_signed_and_the_waiting_ends(signing: KubeletFleet):
    name = await signing.request_certificate(ASKS)
    denied = {"op": "add", "path": "/status/conditions", "value": [{"type": "Denied", "status": "True"}]}
    await approve(signing, name, denied)
    outcome = await signing.wait_for_outcome(name)
    assert (set(outcome.conditions), outcome.certificate) == ({"Denied"}, b"")
    await signing.request("DELETE", f"{CSRS}/{name}")


async def test_whoever_waits_for_an_outcome_that_never_comes_is_told_what_there_is(signing: KubeletFleet):
    name = await signing.request_certificate(ASKS)
    with pytest.raises(TimeoutError, match=f"request {name} after 0.3 s"):
        await signing.wait_for_outcome(name, seconds=0.3)
    await signing.request("DELETE", f"{CSRS}/{name}")


async def test_whoever_waits_for_a_request_that_is_deleted_hears_of_it(signing: KubeletFleet):
    name = await signing.request_certificate(ASKS)
    waiting = asyncio.create_task(signing.wait_for_outcome(name))
    await signing.request("DELETE", f"{CSRS}/{name}")
    with pytest.raises(RequestRejected):
        await waiting
