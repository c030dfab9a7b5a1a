"""How a fault is tried: its alert fires, no other one does, and all is calm before the next."""

import time

from tests.observe.faults import Fault
from tests.observe.observed_cluster import ObservedCluster

_JUST_NOW_SECONDS = 3.0


async def fires_exactly_its_alert(
    watched: ObservedCluster, fault: Fault, *, begun: frozenset[str] = frozenset()
) -> None:
    """`begun` are alerts of faults that last longer than this one."""
    await watched.until_calm(begun)
    before = await watched.fired_within(_JUST_NOW_SECONDS)
    assert fault.alert not in before
    began = time.monotonic()
    async with fault.during(watched):
        await watched.until_fires(fault.alert)
        # Before it is healed: to empty the stream is an outage of NATS, if a short one.
        fired = await watched.fired_within(time.monotonic() - began)
    # Prometheus shows an alert as firing a moment before it stores the sample that says so.
    assert (fired | {fault.alert}) - before - begun == {fault.alert}, (sorted(fired), sorted(before))
