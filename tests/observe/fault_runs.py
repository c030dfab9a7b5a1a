"""Runs one fault: its alert fires, no other alert does, and no alert is pending before the next fault."""

import time
from collections.abc import Sequence

import pytest

from tests.observe.faults import Fault
from tests.observe.observed_cluster import ObservedCluster

_JUST_NOW_SECONDS = 3.0


def each_fault(faults: Sequence[Fault]) -> pytest.MarkDecorator:
    """Run the test with each of these faults."""
    return pytest.mark.parametrize("fault", faults, ids=lambda fault: fault.during.__name__)


async def fires_exactly_its_alert(
    watched: ObservedCluster, fault: Fault, *, begun: frozenset[str] = frozenset()
) -> None:
    """Expect the fault's alert and no other; `begun` are alerts of faults that last longer than this one."""
    await watched.until_calm(begun)
    before = await watched.fired_within(_JUST_NOW_SECONDS)
    assert fault.alert not in before
    began = time.monotonic()
    async with fault.during(watched):
        await watched.until_fires(fault.alert)
        # Checked before the repair: emptying the stream is a short outage of NATS.
        fired = await watched.fired_within(time.monotonic() - began)
    # Prometheus shows an alert as firing shortly before it stores the sample.
    assert (fired | {fault.alert}) - before - begun == {fault.alert}, (sorted(fired), sorted(before))
