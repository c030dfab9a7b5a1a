"""Who may decide about certificate requests, and what a decision is fenced by, real and simulated."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from libs.common.contract.services import CSR
from libs.common.contract.signing_request import KUBELET_SERVING, SigningRequest, SigningRequestCondition
from libs.common.kube.api import SIGNING_REQUESTS, KubeApi
from libs.common.kube.errors import FenceFailed, Forbidden, Invalid
from libs.testbed.kubelets import JSON_PATCH, HttpResponse, KubeletFleet, SimKubelet
from libs.testbed.service_permissions import RBAC, build_role_objects, get_collection_path, get_user_name
from libs.testbed.signing_requests import APPROVED, CSRS, SigningOutcome, make_request_pem
from services.csr.approval_writer import build_approval_patch
from tests.bus_actors import wait_until
from tests.contract.conftest import ApiServer
from tests.kube_loopback import open_api_by

ASKS = SimKubelet(name="asks", ips=("10.7.0.2", "fd00:7::2"))
USER = "system:node:asks"
CERTIFICATES = "certificates.k8s.io"
ADD: dict[str, Any] = {"op": "add", "path": "/status/conditions", "value": [APPROVED]}
APPROVAL = SigningRequestCondition(type="Approved", reason="Test", message="an <odd> & \u2028 text")


@pytest.fixture
async def name(admin: KubeletFleet) -> AsyncIterator[str]:
    """A pending request of a kubelet."""
    made = await admin.request_certificate(ASKS)
    yield made
    await admin.request("DELETE", f"{CSRS}/{made}")


async def read(admin: KubeletFleet, name: str) -> SigningRequest:
    found = await admin.request("GET", f"{CSRS}/{name}")
    return msgspec.json.decode(msgspec.json.encode(found.body), type=SigningRequest)


@asynccontextmanager
async def granted(admin: KubeletFleet, objects: Iterable[Mapping[str, Any]]) -> AsyncIterator[None]:
    made = list(objects)
    for one in made:
        await admin.send("POST", get_collection_path(dict(one)), body=one)
    try:
        yield
    finally:
        for one in made:
            await admin.request("DELETE", f"{get_collection_path(dict(one))}/{one['metadata']['name']}")


# ---- the patch


async def test_the_patch_that_csr_plans_approves_what_was_judged_and_nothing_twice(
    api: KubeApi, admin: KubeletFleet, name: str
):
    patch = build_approval_patch(await read(admin, name), APPROVAL)
    await api.patch_signing_request_approval(name, patch)
    approved = await read(admin, name)
    assert approved.find_condition("Approved") == APPROVAL
    [stored] = (await admin.request("GET", f"{CSRS}/{name}")).body["status"]["conditions"]
    assert stored["lastUpdateTime"]
    with pytest.raises(FenceFailed):
        await api.patch_signing_request_approval(name, patch)


@pytest.mark.parametrize(
    "other",
    [
        {"uid": "8f7a"},
        {"username": "system:node:victim"},
        {"groups": ("system:nodes",)},
        {"groups": ()},
        {"signer_name": "example.com/other"},
        {"usages": ("server auth", "digital signature")},
        {"expiration_seconds": 600},
        {"request": make_request_pem(common_name=USER, dns=["asks"], ips=[])},
    ],
    ids="-".join,
)
async def test_a_request_that_is_not_the_one_that_was_judged_is_not_decided(
    api: KubeApi, admin: KubeletFleet, name: str, other: dict[str, Any]
):
    judged = await read(admin, name)
    if "uid" in other:
        judged = msgspec.structs.replace(judged, metadata=msgspec.structs.replace(judged.metadata, **other))
    else:
        judged = msgspec.structs.replace(judged, spec=msgspec.structs.replace(judged.spec, **other))
    with pytest.raises(FenceFailed):
        await api.patch_signing_request_approval(name, build_approval_patch(judged, APPROVAL))
    assert (await read(admin, name)).is_pending


async def test_a_request_of_a_limited_life_is_approved_with_it_tested(api: KubeApi, admin: KubeletFleet):
    name = await admin.request_certificate(ASKS, expiration_seconds=3600)
    await api.patch_signing_request_approval(name, build_approval_patch(await read(admin, name), APPROVAL))
    assert not (await read(admin, name)).is_pending
    await admin.request("DELETE", f"{CSRS}/{name}")


@pytest.mark.real_only
@pytest.mark.parametrize(
    ("condition", "fields"),
    [
        ({"status": "True"}, {"status.conditions[0].type"}),
        ({"type": "Approved"}, {"status.conditions[0].status"}),
        ({"type": "Denied", "status": "False"}, {"status.conditions[0].status"}),
        ({"type": "Failed", "status": "Unknown"}, {"status.conditions[0].status"}),
        ({"type": "Waits", "status": "Maybe"}, {"status.conditions[0].status"}),
    ],
)
async def test_a_condition_that_says_nothing_is_invalid_and_no_failed_fence(
    api: KubeApi, name: str, condition: dict[str, str], fields: set[str]
):
    with pytest.raises(Invalid) as refused:
        await api.patch_signing_request_approval(name, [ADD | {"value": [condition]}])
    assert {cause.field for cause in refused.value.causes} == fields


async def test_who_approves_may_fail_a_request_which_then_stays_failed(
    api: KubeApi, admin: KubeletFleet, name: str
):
    await api.patch_signing_request_approval(name, [ADD | {"value": [APPROVED | {"type": "Failed"}]}])
    with pytest.raises(Invalid) as refused:
        await api.patch_signing_request_approval(name, [ADD])
    assert [cause.field for cause in refused.value.causes] == ["status.conditions"]
    assert set((await read(admin, name)).status.conditions) == {
        SigningRequestCondition(type="Failed", reason="Testbed", message="approved unread")
    }


# ---- what was approved


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


async def sign(kubelets: KubeletFleet, name: str) -> SigningOutcome:
    try:
        await kubelets.approve(name)
        return await kubelets.wait_for_outcome(name)
    finally:
        await kubelets.request("DELETE", f"{CSRS}/{name}")


def names_in(certificate: x509.Certificate) -> list[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


async def test_what_was_approved_is_issued_for_the_names_that_were_asked_for(signing: KubeletFleet):
    outcome = await sign(signing, await signing.request_certificate(ASKS))
    certificate = x509.load_pem_x509_certificate(outcome.certificate)
    assert names_in(certificate) == ["asks", "10.7.0.2", "fd00:7::2"]
    [common_name] = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert (common_name.value, set(outcome.conditions)) == (USER, {"Approved"})


async def test_what_was_denied_is_never_signed_and_the_waiting_ends(signing: KubeletFleet):
    name = await signing.request_certificate(ASKS)
    denied = {"op": "add", "path": "/status/conditions", "value": [{"type": "Denied", "status": "True"}]}
    await approve(signing, name, denied)
    outcome = await signing.wait_for_outcome(name)
    assert (set(outcome.conditions), outcome.certificate) == ({"Denied"}, b"")
    await signing.request("DELETE", f"{CSRS}/{name}")


# ---- rights


async def test_the_rights_of_csr_reach_as_far_as_its_signer(
    api_server: ApiServer, admin: KubeletFleet, name: str
):
    pem = make_request_pem(common_name=USER, dns=["asks"], ips=[])
    other = await admin.file_request(pem, user=USER, signer="kubernetes.io/kube-apiserver-client")
    async with (
        open_api_by(api_server.kubeconfig(get_user_name(CSR))) as service,
        granted(admin, build_role_objects(CSR)),
    ):

        async def approved() -> bool:  # the real server learns of a binding a moment after it was made
            try:
                await service.patch_signing_request_approval(name, [ADD])
            except Forbidden:
                return False
            return True

        await wait_until(approved, "approved")
        with pytest.raises(Forbidden, match=r'signerName "kubernetes.io/kube-apiserver-client"'):
            await service.patch_signing_request_approval(other, [ADD])
        with pytest.raises(Forbidden):
            await service.list_page(SIGNING_REQUESTS, on_unreadable=print)
    await admin.request("DELETE", f"{CSRS}/{other}")


@pytest.mark.parametrize(
    ("number", "rule", "may"),
    [
        (1, {"resourceNames": [KUBELET_SERVING]}, True),
        (2, {"resourceNames": ["kubernetes.io/*"]}, True),
        (3, {}, True),
        (4, {"verbs": ["*"]}, True),
        (5, {"resourceNames": ["kubernetes.io/kube-apiserver-client"]}, False),
        (6, {"resourceNames": ["*"]}, False),
        (7, {"resourceNames": ["example.com/*"]}, False),
        (8, {"verbs": ["sign"]}, False),
        (9, {"apiGroups": [""]}, False),
        (10, {"resources": ["certificatesigningrequests"]}, False),
    ],
)
async def test_who_approves_needs_that_right_for_the_signer_by_its_name_or_its_domain(
    admin: KubeletFleet, name: str, number: int, rule: dict[str, Any], may: bool
):
    user = f"approver-{number}"
    async with granted(admin, approver(user, rule)):

        async def decided() -> bool:
            answers.append(
                await admin.request(
                    "PATCH", f"{CSRS}/{name}/approval", as_user=user, body=[ADD], content_type=JSON_PATCH
                )
            )
            return "cannot patch resource" not in str(answers[-1].body.get("message", ""))

        answers: list[HttpResponse] = []
        await wait_until(decided, "the binding is known")
        assert answers[-1].status == (200 if may else 403), answers[-1]
        words = f'user not permitted to approve requests with signerName "{KUBELET_SERVING}"'
        assert may or words in answers[-1].body["message"]


def approver(user: str, rule: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """A ClusterRole with the right to patch approvals, and one about signers."""
    patching = {
        "apiGroups": [CERTIFICATES],
        "resources": ["certificatesigningrequests/approval"],
        "verbs": ["patch"],
    }
    signing = {"apiGroups": [CERTIFICATES], "resources": ["signers"], "verbs": ["approve"]} | rule
    yield {"kind": "ClusterRole", "metadata": {"name": user}, "rules": [patching, signing]}
    yield {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": user},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }
