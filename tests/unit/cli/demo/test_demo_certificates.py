"""What the demo tells of certificates."""

from datetime import UTC, datetime, timedelta

from cli.demo.certificate_progress import CertificateProgress
from libs.common.contract.signing_request import SigningRequestCondition
from tests.builders import make_request

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def after(milliseconds: int) -> datetime:
    return NOW + timedelta(milliseconds=milliseconds)


def test_each_node_that_asked_is_counted_once_with_the_time_until_its_certificate():
    certificates = CertificateProgress()
    for name in ("web-1", "web-2", "web-3"):
        certificates.add_request(name, NOW)
    assert certificates.summary == "0 of 3 certificates issued"
    for number in (1, 2, 3):
        assert not certificates.is_settled
        certificates.update_request(make_request(node=f"web-{number}", certificate="pem"), after(10 * number))
    certificates.update_request(make_request(node="web-1", certificate="pem"), after(9000))
    certificates.update_request(make_request(node="another-node", certificate="pem"), after(1))
    assert certificates.is_settled
    assert certificates.are_all_issued
    assert certificates.summary == "3 of 3 certificates issued (p50 20 ms, max 30 ms)"


def test_who_is_denied_or_not_answered_is_named_with_the_reason():
    certificates = CertificateProgress()
    certificates.add_request("web-1", NOW)
    certificates.add_request("web-2", NOW)
    denied = SigningRequestCondition(type="Denied", message="the address is another's")
    certificates.update_request(make_request(node="web-1", conditions=(denied,)), after(5))
    assert not certificates.is_settled
    assert not certificates.are_all_issued
    assert certificates.missing == [("web-1", "the address is another's"), ("web-2", "timeout")]


def test_an_approved_request_is_not_issued_yet():
    certificates = CertificateProgress()
    certificates.add_request("web-1", NOW)
    approved = (SigningRequestCondition(type="Approved"),)
    certificates.update_request(make_request(node="web-1", conditions=approved), after(5))
    assert not certificates.is_settled
