"""What the demo tells of certificates."""

from datetime import timedelta

from cli.demo.node_progress import DemoProgress
from cli.demo.view import format_certificates
from libs.common.contract.signing_request import SigningRequestCondition
from tests.builders import NOW, make_request


def after(milliseconds: int):
    return NOW + timedelta(milliseconds=milliseconds)


def requested(count: int) -> DemoProgress:
    progress = DemoProgress()
    for number in range(1, count + 1):
        progress.add_node(f"web-{number}", "metal", after(-9000))
        progress.add_certificate_request(f"web-{number}", NOW)
    return progress


def test_each_node_that_asked_is_counted_once_with_the_time_until_its_certificate():
    progress = requested(3)
    progress.add_node("without-request", "metal", NOW)
    assert format_certificates(progress) == "0 of 3 certificates issued"
    for number in (1, 2, 3):
        assert not progress.are_certificates_settled
        issued = make_request(node=f"web-{number}", certificate="pem")
        progress.apply_certificate_request(issued, after(10 * number))
    progress.apply_certificate_request(make_request(node="web-1", certificate="pem"), after(9000))
    progress.apply_certificate_request(make_request(node="another-node", certificate="pem"), after(1))
    assert progress.are_certificates_settled
    assert progress.without_certificate == []
    assert format_certificates(progress) == "3 of 3 certificates issued (p50 20 ms, max 30 ms)"


def test_a_denied_request_is_settled_and_one_that_is_only_approved_is_not():
    progress = requested(2)
    for kind, node in (("Denied", "web-1"), ("Approved", "web-2")):
        condition = SigningRequestCondition(type=kind, message="the address is another's")
        progress.apply_certificate_request(make_request(node=node, conditions=(condition,)), after(5))
    assert not progress.are_certificates_settled
    reasons = [(node.name, node.certificate_trouble) for node in progress.without_certificate]
    assert reasons == [("web-1", "the address is another's"), ("web-2", "")]
