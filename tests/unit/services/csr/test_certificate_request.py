"""A request is parsed with care, and the one write of csr applies to exactly the request that was judged."""

import asyncio
import base64
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.signing_request import REQUEST_LIMIT, SigningRequest, SigningRequestCondition
from services.csr.approval_writer import MAX_CONCURRENT_WRITES, ApprovalWriter, build_approval_patch
from services.csr.core import certificate_request as reading
from services.csr.core.certificate_request import CertificateRequest, MalformedRequest, parse_request
from services.csr.core.decision import Approve, Decision, Ignore
from tests.builders import make_request
from tests.bus_actors import wait_until
from tests.csr_der import (
    ORGANIZATION,
    RequestFields,
    encode_dns_name,
    encode_email,
    encode_ip,
    encode_pem,
    get_key,
)
from tests.in_memory_api import PatchFailed, apply_json_patch

HONEST = RequestFields(sans=(encode_dns_name("web-1"), encode_ip("10.0.0.5"), encode_ip("fd00:7::5")))


def asked(pem: bytes) -> CertificateRequest:
    read = parse_request(pem)
    assert isinstance(read, CertificateRequest), read
    return read


def test_an_honest_request_is_read_as_it_is():
    assert asked(encode_pem(HONEST.sign())) == CertificateRequest(
        common_names=("system:node:web-1",),
        organizations=("system:nodes",),
        dns_names=("web-1",),
        ips=("10.0.0.5", "fd00:7::5"),
        key="ECDSA P-256",
        is_signature_valid=True,
    )


def test_what_a_library_signs_is_read_just_the_same():
    subject = x509.Name.from_rfc4514_string("CN=system:node:web-1,O=system:nodes")
    names = x509.SubjectAlternativeName([x509.DNSName("web-1")])
    builder = x509.CertificateSigningRequestBuilder(subject).add_extension(names, critical=False)
    signed = builder.sign(get_key("Ed25519"), None).public_bytes(Encoding.PEM)
    read = asked(signed)
    assert (read.dns_names, read.key, read.is_signature_valid, read.problems) == (
        ("web-1",),
        "Ed25519",
        True,
        (),
    )


@pytest.mark.parametrize("kind", ["RSA 2048", "P-256", "P-384", "P-521", "Ed25519"])
def test_keys_that_kubelets_may_have(kind: str):
    read = asked(encode_pem(RequestFields(key=kind).sign()))
    assert (read.key.removeprefix("ECDSA "), read.key_problem, read.is_signature_valid) == (kind, "", True)


@pytest.mark.parametrize("kind", ["RSA 1024", "P-192", "P-224", "secp256k1", "DSA", "Ed448"])
def test_nobody_looks_at_a_signature_by_a_key_that_we_do_not_accept(kind: str):
    read = asked(encode_pem(RequestFields(key=kind).sign()))
    assert read.key_problem
    assert read.is_signature_valid is None


def test_no_more_names_are_kept_than_a_request_may_have():
    read = asked(encode_pem(RequestFields(sans=(encode_dns_name("web-1"),) * 500).sign()))
    assert len(read.dns_names) == reading.MAX_SANS
    assert read.problems == (f"it asks for 500 names and addresses, more than {reading.MAX_SANS}",)


def test_what_the_kubelet_wrote_is_shown_bounded_and_printable():
    fields = RequestFields(
        subject=(((ORGANIZATION, "o"),), (("2.5.4.11", "\x1b[31m" + "x" * 500),)),
        sans=(encode_email("a\n@b"),),
    )
    read = asked(encode_pem(fields.sign()))
    shown = (*read.other_subject_attributes, *read.other_sans)
    assert len(shown) == 2
    assert all(len(text) < 140 and text.isascii() and text.isprintable() for text in shown)


def test_a_request_of_the_largest_size_is_read_and_a_larger_one_is_not():
    pem = encode_pem(HONEST.sign())  # once: signatures differ in length
    spaces = REQUEST_LIMIT - len(pem)
    assert isinstance(parse_request(pem + b"\n" * spaces), CertificateRequest)
    assert isinstance(parse_request(pem + b"\n" * (spaces + 1)), MalformedRequest)


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=40)), max_size=8))
def test_no_list_of_names_raises(names: list[tuple[int, bytes]]):
    sans = tuple(bytes([tag, len(content)]) + content for tag, content in names)
    assert isinstance(
        parse_request(encode_pem(RequestFields(sans=sans).sign())), CertificateRequest | MalformedRequest
    )


@given(st.lists(st.tuples(st.text(max_size=20), st.sampled_from([0x0C, 0x13, 0x14, 0x16, 0x1C, 0x1E, 0x03]))))
def test_no_subject_raises(values: list[tuple[str, int]]):
    for text, tag in values:
        fields = RequestFields(subject=(((ORGANIZATION, text),),), subject_tag=tag)
        assert isinstance(parse_request(encode_pem(fields.sign())), CertificateRequest | MalformedRequest)


class PanicException(BaseException):
    """As pyo3 raises it out of a broken assertion; its module is no Python module."""


PanicException.__module__ = "pyo3_runtime"


@pytest.mark.parametrize("error", [PanicException("assertion failed"), MemoryError(), RecursionError("deep")])
def test_whatever_the_parser_raises_makes_the_request_unreadable(error: BaseException):
    def parse(_: bytes) -> CertificateRequest:
        raise error

    read = reading.parse_with(parse, encode_pem(HONEST.sign()))
    assert isinstance(read, MalformedRequest)
    assert type(error).__name__ in read.reason


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_the_end_of_the_process_is_no_fault_of_a_request(error: BaseException):
    def parse(_: bytes) -> CertificateRequest:
        raise error

    with pytest.raises(type(error)):
        reading.parse_with(parse, encode_pem(HONEST.sign()))


# ---- the patch


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
    approve: Decision = Approve(reason="r", message="m")
    verdicts = [approve]

    class Slow:
        async def patch_signing_request_approval(self, name: str, json_patch: object, /) -> None:
            patched.append(name)
            await going.wait()

    def fail_if_evaluated() -> Decision:
        raise AssertionError("a slot was free, so the decision was of this moment")

    slow: Any = Slow()
    api = ApprovalWriter(slow, observe_only=False)

    async with asyncio.TaskGroup() as tasks:
        for number in range(MAX_CONCURRENT_WRITES):
            tasks.create_task(api.write(make_request(f"csr-{number}"), approve, fail_if_evaluated))
        last = tasks.create_task(api.write(make_request("last"), approve, lambda: verdicts[-1]))
        await wait_until(lambda: len(patched) == MAX_CONCURRENT_WRITES, "all slots are taken")
        verdicts.append(Ignore(reason="it is another's", outcome="not-ours"))
        going.set()
    assert last.result() == verdicts[-1]
    assert "last" not in patched
