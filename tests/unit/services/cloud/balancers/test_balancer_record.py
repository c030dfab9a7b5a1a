"""The record is read with limits, and type and class decide whose Service it is."""

from datetime import datetime, timedelta

import pytest

from libs.common.contract.instances import InstanceAnchor
from libs.common.contract.kube_service import BALANCER_ANNOTATION
from services.cloud.core.balancers.balancer_record import (
    BalancerAccount,
    BalancerRecord,
    encode_balancer_record,
    is_selected,
    read_balancer_record,
)
from tests.builders import NOW
from tests.clouds.balancers import ACCOUNT, make_service

ANCHOR = InstanceAnchor(kind="network", id="4711")
RECORDS = {
    "a create may have begun": BalancerRecord(account="prod", create_deadline=NOW + timedelta(minutes=2)),
    "a balancer exists": BalancerRecord(account="prod", anchor=ANCHOR, id="77"),
}
UNREADABLE = {
    "nothing": "",
    "no JSON": "{",
    "no account": '{"id":"7"}',
    "an empty account": '{"account":"","id":"7"}',
    "another type": '{"account":"prod","id":7}',
    "neither an id nor a deadline": '{"account":"prod"}',
    "an id and a deadline": '{"account":"prod","id":"7","create_deadline":"2026-03-01T12:00:00Z"}',
    "a deadline without a time zone": '{"account":"prod","create_deadline":"2026-03-01T12:00:00"}',
    "a deadline that prevents each create": '{"account":"prod","create_deadline":"9999-12-31T23:59:59Z"}',
    "deep nesting": "[" * 2000,
    "a long id": f'{{"account":"prod","id":"{"7" * 257}"}}',
    "a long text": f'{{"account":"prod","id":"7"{" " * 2048}}}',
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_record_is_read_as_it_was_written(record: BalancerRecord):
    service = make_service(annotations={BALANCER_ANNOTATION: encode_balancer_record(record)})
    assert read_balancer_record(service, NOW) == record


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_any_other_text_is_no_record(text: str):
    assert read_balancer_record(make_service(annotations={BALANCER_ANNOTATION: text}), NOW) is None


def test_equal_records_are_equal_texts_without_empty_fields():
    assert encode_balancer_record(RECORDS["a balancer exists"]) == (
        '{"account":"prod","anchor":{"id":"4711","kind":"network"},"id":"77"}'
    )


@pytest.mark.parametrize("year", [1, 2026])
def test_a_deadline_of_any_year_in_the_past_is_read(year: int):
    record = BalancerRecord(account="prod", create_deadline=datetime(year, 1, 1, tzinfo=NOW.tzinfo))
    service = make_service(annotations={BALANCER_ANNOTATION: encode_balancer_record(record)})
    assert read_balancer_record(service, NOW) == record


@pytest.mark.parametrize(
    ("kind", "own_class", "is_default", "expected"),
    [
        ("LoadBalancer", "talos-ccm/prod", False, True),
        ("LoadBalancer", "talos-ccm/prod", True, True),
        ("LoadBalancer", "talos-ccm/other", True, False),
        ("LoadBalancer", None, False, False),
        ("LoadBalancer", None, True, True),
        ("ClusterIP", "talos-ccm/prod", True, False),
    ],
)
def test_a_service_belongs_to_the_account_of_its_class(
    kind: str, own_class: str | None, is_default: bool, expected: bool
):
    account = BalancerAccount(
        name=ACCOUNT.name, load_balancer_class=ACCOUNT.load_balancer_class, is_default=is_default
    )
    assert is_selected(make_service(kind=kind, own_class=own_class), account) is expected
