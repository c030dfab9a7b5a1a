"""Certificate requests on a real and a simulated API server: who asks, who approves, what stays decided."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from libs.testbed.kubelets import KubeletFleet, SimKubelet

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
JSON_PATCH = "application/json-patch+json"
APPROVED = {"type": "Approved", "status": "True", "reason": "Test", "message": "by a test"}
KUBELET = SimKubelet(name="asks", ips=("10.7.0.2", "fd00:7::2"))


@pytest.fixture
async def name(admin: KubeletFleet) -> AsyncIterator[str]:
    """A pending request of a kubelet."""
    made = await admin.request_certificate(KUBELET)
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


async def test_a_request_says_who_asked_and_that_nothing_is_decided(admin: KubeletFleet, name: str):
    found = (await admin.request("GET", f"{CSRS}/{name}")).body
    assert found["spec"]["username"] == "system:node:asks"
    assert found["spec"]["groups"] == ["system:nodes", "system:authenticated"]
    assert found["spec"]["usages"] == ["digital signature", "server auth"]
    assert (name.startswith("csr-"), found["status"]) == (True, {})


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
