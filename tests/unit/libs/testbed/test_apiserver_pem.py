"""The simulated server parses any bytes to a certificate request or a reason for the rejection."""

import base64
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.testbed.signing_requests import make_request_pem
from libs.testbed.sim_apiserver.request_pem import (
    get_alternative_names,
    get_common_name,
    is_signature_valid,
    parse_request_pem,
)
from tests.csr_cases import CASES, CsrCase

GOOD = make_request_pem(common_name="system:node:web-1", dns=["web-1"], ips=["10.0.0.5"])
DER = base64.b64decode(b"".join(GOOD.splitlines()[1:-1]))


def in_pem(der: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE REQUEST-----\n%s-----END CERTIFICATE REQUEST-----\n" % base64.encodebytes(
        der
    )


def read(pem: bytes) -> None:
    """Parse all parts that the server uses. Raises ValueError."""
    csr = parse_request_pem(pem)
    is_signature_valid(csr)
    get_common_name(csr)
    get_alternative_names(csr)


@given(at=st.integers(0, len(DER) - 1), byte=st.integers(0, 255))
def test_a_request_with_one_wrong_byte_is_parsed_or_rejected(at: int, byte: int):
    with suppress(ValueError):
        read(in_pem(DER[:at] + bytes([byte]) + DER[at + 1 :]))


@given(pem=st.binary(max_size=200), before=st.booleans())
def test_bytes_around_a_request_hide_it_or_do_not_change_it(pem: bytes, before: bool):
    with suppress(ValueError):
        assert (
            get_common_name(parse_request_pem(pem + b"\n" + GOOD if before else GOOD + pem))
            == "system:node:web-1"
        )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_hostile_request_is_parsed_or_rejected(case: CsrCase):
    with suppress(ValueError):
        read(case.pem())
