"""The one write of csr applies to exactly the request that was judged, and to no other."""

import asyncio
import base64
from typing import Any

import msgspec
import pytest

from libs.common.contract.signing_request import SigningRequest, SigningRequestCondition
from services.csr.approval_writer import MAX_CONCURRENT_WRITES, ApprovalWriter, build_approval_patch
from services.csr.core.decision import Approve
from services.csr.core.evaluation import SkipRequest
from tests.builders import make_request
from tests.bus_actors import wait_until
from tests.in_memory_api import PatchFailed, apply_json_patch

APPROVED = SigningRequestCondition(type="Approved", reason="r", message="m")
JUDGED = make_request(pem=b"-----BEGIN", usages=("digital signature", "server auth"))


def held(judged: SigningRequest = JUDGED, **spec: Any) -> dict[str, Any]:
    """The object that Kubernetes holds; None takes a field of spec away."""
    fields = msgspec.json.decode(msgspec.json.encode(judged.spec)) | spec
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": judged.name, "uid": judged.uid, "resourceVersion": "7", "managedFields": []},
        "spec": {key: value for key, value in fields.items() if value is not None},
        "status": {},
    }


def test_status_may_be_absent_or_its_conditions_null():
    absent = {key: value for key, value in held().items() if key != "status"} | {"status": {}}
    for document in (absent, held() | {"status": {"conditions": None}}):
        assert apply_json_patch(document, build_approval_patch(JUDGED, APPROVED))["status"]["conditions"]


OTHER_SPECS: tuple[dict[str, Any], ...] = (
    {"username": "system:node:db-1"},
    {"username": None},
    {"groups": ["system:authenticated", "system:nodes"]},
    {"groups": ["system:nodes"]},
    {"groups": ["system:nodes", "system:authenticated", "system:masters"]},
    {"groups": None},
    {"signerName": "kubernetes.io/kube-apiserver-client"},
    {"usages": ["digital signature", "server auth", "client auth"]},
    {"usages": ["digital signature"]},
    {"usages": None},
    {"request": base64.b64encode(b"-----BEGIX").decode()},
    {"request": base64.b64encode(b"-----BEGIN ").decode()},
    {"expirationSeconds": 2**31 - 1},
)
OTHERS: dict[str, dict[str, Any]] = {
    **{repr(spec): held(**spec) for spec in OTHER_SPECS},
    "filed later under the same name": held(make_request(uid="other", pem=b"-----BEGIN")),
    **{
        f"somebody has decided: {kind}": held()
        | {"status": {"conditions": [{"type": kind, "status": "True"}]}}
        for kind in ("Approved", "Denied", "Failed", "Something")
    },
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_no_other_request_is_written(other: dict[str, Any]):
    with pytest.raises(PatchFailed):
        apply_json_patch(other, build_approval_patch(JUDGED, APPROVED))


@pytest.mark.parametrize("seconds", [None, 600, 2**31 - 1])
def test_a_time_that_was_judged_is_the_time_that_is_held(seconds: int | None):
    judged = make_request(expiration_seconds=3600)
    assert apply_json_patch(held(judged), build_approval_patch(judged, APPROVED))
    with pytest.raises(PatchFailed):
        apply_json_patch(held(judged, expirationSeconds=seconds), build_approval_patch(judged, APPROVED))


def test_an_oversized_request_is_denied_without_its_bytes_but_never_another_ones():
    judged = make_request(pem=b"")
    patch = build_approval_patch(judged, SigningRequestCondition(type="Denied"))
    assert apply_json_patch(held(judged, request="QUFBQQ=="), patch)["status"]["conditions"]
    assert not [step for step in patch if step["path"] == "/spec/request"]


def test_a_request_without_its_bytes_is_never_approved():
    with pytest.raises(ValueError, match="csr-1"):
        build_approval_patch(make_request(pem=b""), APPROVED)


async def test_a_request_is_judged_when_its_slot_is_free_and_only_that_verdict_is_written():
    """Every slot hangs; the last request is judged again once one of them is free, and no other one is."""
    going, patched = asyncio.Event(), list[str]()
    approve: Approve | SkipRequest = Approve(reason="r", message="m")
    verdicts = [approve]

    class Slow:
        async def patch_signing_request_approval(self, name: str, json_patch: object, /) -> None:
            patched.append(name)
            await going.wait()

        async def create_event(self, event: object, *, now: object) -> bool:
            return True

    def fail_if_evaluated() -> Approve | SkipRequest:
        raise AssertionError("a slot was free, so the action was of this moment")

    api = ApprovalWriter(Slow(), observe_only=False)

    async with asyncio.TaskGroup() as tasks:
        for number in range(MAX_CONCURRENT_WRITES):
            tasks.create_task(api.write(make_request(f"csr-{number}"), approve, fail_if_evaluated))
        last = tasks.create_task(api.write(make_request("last"), approve, lambda: verdicts[-1]))
        await wait_until(lambda: len(patched) == MAX_CONCURRENT_WRITES, "all slots are taken")
        verdicts.append(SkipRequest("not-ours", "it is another's"))
        going.set()
    assert last.result() == verdicts[-1]
    assert "last" not in patched
