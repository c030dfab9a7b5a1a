"""The simulated server's reader of requests: whatever the bytes, a request or words why not."""

import base64
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.testbed.signing_requests import request_pem
from libs.testbed.sim_apiserver.pem import common_name, names_of, read_request, signature_is_valid
from tests.csr_cases import CASES, Case

GOOD = request_pem(common_name="system:node:web-1", dns=["web-1"], ips=["10.0.0.5"])
DER = base64.b64decode(b"".join(GOOD.splitlines()[1:-1]))


def in_pem(der: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE REQUEST-----\n%s-----END CERTIFICATE REQUEST-----\n" % base64.encodebytes(
        der
    )


def read(pem: bytes) -> None:
    """All that the server reads of it. Raises ValueError."""
    csr = read_request(pem)
    signature_is_valid(csr)
    common_name(csr)
    names_of(csr)


@given(at=st.integers(0, len(DER) - 1), byte=st.integers(0, 255))
def test_one_wrong_byte_is_read_or_refused_and_breaks_nothing(at: int, byte: int):
    with suppress(ValueError):
        read(in_pem(DER[:at] + bytes([byte]) + DER[at + 1 :]))


@given(pem=st.binary(max_size=200), before=st.booleans())
def test_bytes_around_a_request_hide_it_or_leave_it_whole(pem: bytes, before: bool):
    with suppress(ValueError):
        assert common_name(read_request(pem + b"\n" + GOOD if before else GOOD + pem)) == "system:node:web-1"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_hostile_request_breaks_the_reader(case: Case):
    with suppress(ValueError):
        read(case.pem())
