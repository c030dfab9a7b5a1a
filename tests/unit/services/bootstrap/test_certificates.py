"""When a server needs another certificate, and what it is for."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from services.bootstrap import certificates
from services.bootstrap.resource_names import ResourceNames

NOW = datetime(2026, 1, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
NAMES = ResourceNames(namespace="kube-system", prefix="ccm").list_hosts()


def an_authority(now: datetime = NOW) -> certificates.KeyPair:
    return certificates.make_authority(
        ec.generate_private_key(ec.SECP256R1()), name="ccm-nats", now=now, serial=1
    )


def issued(
    authority: certificates.KeyPair, now: datetime = NOW, *, lifetime: timedelta = YEAR, names=NAMES
) -> certificates.KeyPair:
    key = ec.generate_private_key(ec.SECP256R1())
    return certificates.issue_certificate(authority, key, names=names, lifetime=lifetime, now=now, serial=2)


AUTHORITY = an_authority()
HELD = issued(AUTHORITY)


def why(
    held: certificates.KeyPair | None,
    now: datetime = NOW,
    *,
    authority: certificates.KeyPair = AUTHORITY,
    names=NAMES,
    lifetime=YEAR,
) -> str:
    return certificates.explain_renewal(held, authority, names=names, lifetime=lifetime, now=now)


@given(st.timedeltas(min_value=timedelta(0), max_value=YEAR * 2))
def test_a_certificate_is_kept_until_a_third_of_its_life_is_left(age: timedelta):
    assert (why(HELD, NOW + age) == "") is (age <= YEAR * 2 / 3)


def test_why_there_must_be_another_one_is_said():
    other = issued(AUTHORITY)
    assert why(None) == "the server has none yet"
    assert "expires at 2027-01-01" in why(HELD, NOW + YEAR)
    assert "names differ" in why(HELD, names=(*NAMES, "nats"))
    assert "present authority" in why(HELD, authority=an_authority())
    assert "another certificate" in why(certificates.KeyPair(certificate=HELD.certificate, key=other.key))
    assert "longer than --certificate-lifetime" in why(HELD, lifetime=timedelta(days=30))
    assert "is not valid" in why(certificates.KeyPair(certificate=b"half of", key=HELD.key))


def test_the_order_of_names_does_not_matter():
    assert why(HELD, names=tuple(reversed(NAMES))) == ""


def test_no_certificate_outlives_its_authority_and_near_the_end_it_is_not_renewed_at_every_look():
    late = NOW + certificates.AUTHORITY_LIFETIME - timedelta(days=30)
    pair = issued(AUTHORITY, late)
    assert certificates.get_expiry(pair) == certificates.get_expiry(AUTHORITY)
    assert why(pair, late) == ""
    assert "expires at" in why(pair, late + timedelta(days=21))


def test_a_clock_that_is_some_minutes_behind_takes_it():
    certificate = x509.load_pem_x509_certificate(HELD.certificate)
    assert certificate.not_valid_before_utc <= NOW - timedelta(minutes=5)


def test_the_authority_signs_servers_and_no_other_authority():
    [constraint] = [
        e.value for e in _certificate(AUTHORITY).extensions if isinstance(e.value, x509.BasicConstraints)
    ]
    assert (constraint.ca, constraint.path_length) == (True, 0)
    [of_server] = [
        e.value for e in _certificate(HELD).extensions if isinstance(e.value, x509.BasicConstraints)
    ]
    assert of_server.ca is False


def test_a_pair_of_two_halves_is_refused():
    certificates.check_key_pair(AUTHORITY)
    with pytest.raises(ValueError, match="belongs to another certificate"):
        certificates.check_key_pair(certificates.KeyPair(certificate=AUTHORITY.certificate, key=HELD.key))


def test_openssl_reads_the_authority():
    context = ssl.create_default_context(cadata=AUTHORITY.certificate.decode())
    assert context.cert_store_stats()["x509_ca"] == 1


def _certificate(pair: certificates.KeyPair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate)
