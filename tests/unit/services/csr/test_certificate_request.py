"""A request is parsed with care."""

import pytest

from libs.common.contract.signing_request import REQUEST_LIMIT, SigningRequestCondition
from services.csr.approval_writer import build_approval_patch
from services.csr.core import certificate_request as reading
from services.csr.core.certificate_request import CertificateRequest, MalformedRequest, parse_request
from tests.builders import make_request
from tests.csr_der import (
    ORGANIZATION,
    RequestFields,
    encode_dns_name,
    encode_email,
    encode_ip,
    encode_pem,
)

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


# ---- the patch: test_kube_approvals applies it to the API server


def test_an_oversized_request_is_denied_by_its_uid_without_its_bytes():
    patch = build_approval_patch(make_request(pem=b""), SigningRequestCondition(type="Denied"))
    paths = [step["path"] for step in patch]
    assert "/metadata/uid" in paths
    assert "/spec/request" not in paths


def test_a_request_without_its_bytes_is_never_approved():
    with pytest.raises(ValueError, match="csr-1"):
        build_approval_patch(make_request(pem=b""), SigningRequestCondition(type="Approved"))
