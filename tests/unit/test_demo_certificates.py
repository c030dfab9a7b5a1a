"""What the demo tells of certificates."""

from datetime import UTC, datetime, timedelta

from cli.demo.certificates import Certificates
from libs.common.signing_request import SigningRequestCondition
from tests.builders import a_request

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def after(milliseconds: int) -> datetime:
    return NOW + timedelta(milliseconds=milliseconds)


def test_each_node_that_asked_is_counted_once_with_the_time_until_its_certificate():
    certificates = Certificates()
    for name in ("web-1", "web-2", "web-3"):
        certificates.asks(name, NOW)
    assert certificates.told == "0 of 3 certificates issued"
    for number in (1, 2, 3):
        assert not certificates.settled
        certificates.seen(a_request(node=f"web-{number}", certificate="pem"), after(10 * number))
    certificates.seen(a_request(node="web-1", certificate="pem"), after(9000))
    certificates.seen(a_request(node="somebody-else", certificate="pem"), after(1))
    assert certificates.settled
    assert certificates.all_issued
    assert certificates.told == "3 of 3 certificates issued (p50 20 ms, max 30 ms)"


def test_who_is_denied_or_not_answered_is_named_with_the_reason():
    certificates = Certificates()
    certificates.asks("web-1", NOW)
    certificates.asks("web-2", NOW)
    denied = SigningRequestCondition(type="Denied", message="the address is another's")
    certificates.seen(a_request(node="web-1", conditions=(denied,)), after(5))
    assert not certificates.settled
    assert not certificates.all_issued
    assert certificates.without == [("web-1", "the address is another's"), ("web-2", "patience was over")]


def test_an_approved_request_is_not_issued_yet():
    certificates = Certificates()
    certificates.asks("web-1", NOW)
    approved = (SigningRequestCondition(type="Approved"),)
    certificates.seen(a_request(node="web-1", conditions=approved), after(5))
    assert not certificates.settled
