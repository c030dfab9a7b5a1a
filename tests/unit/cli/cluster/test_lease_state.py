"""The state of a Lease, which any client may have written."""

from datetime import timedelta

import pytest

from cli.cluster.lease_state import LeaseState, read_lease_state
from libs.common.kube.lease import LeaseSpec
from tests.builders import NOW


@pytest.mark.parametrize(
    "text", ["2026-03-01T11:59:59.000000Z", "2026-03-01T11:59:59", "2026-03-01T12:59:59+01:00"]
)
def test_a_renew_time_without_a_zone_is_in_utc(text: str):
    lease = read_lease_state(LeaseSpec(holder_identity="w", renew_time=text))
    assert lease.seconds_since_renewal(NOW) == 1
    assert lease.why_not_held(NOW) == ""


@pytest.mark.parametrize("text", [None, "", "yesterday"])
def test_without_a_valid_renew_time_nothing_holds_the_lease(text: str | None):
    lease = read_lease_state(LeaseSpec(holder_identity="w", renew_time=text), "talos/mine")
    assert not lease.is_held(NOW)
    assert lease.why_not_held(NOW) == "talos/mine of w has no renew time"


@pytest.mark.parametrize(("seconds", "is_held"), [(14, True), (15, True), (16, False)])
def test_a_lease_without_a_duration_lasts_15_seconds(seconds: int, is_held: bool):
    lease = LeaseState(holder="w", renewed_at=NOW - timedelta(seconds=seconds))
    assert lease.is_held(NOW) == is_held
    assert lease.is_held(NOW, slack=timedelta(seconds=1))
    assert read_lease_state(LeaseSpec()).why_not_held(NOW) == "has no holder"
