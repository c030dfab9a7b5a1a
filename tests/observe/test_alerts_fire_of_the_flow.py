"""Each fault of watcher, NATS, keys and certificates fires its alert and no other."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.observe.fault_table import LAST, OF_KEYS, OF_OUTAGES, STALE, each_fault, fires_exactly_its_alert
from tests.observe.faults import Fault, rejected_watch
from tests.observe.observed_cluster import ObservedCluster


@pytest.fixture(scope="module")
async def staling(watched: ObservedCluster) -> AsyncIterator[AsyncExitStack]:
    """A fault that fires after a minute; the other faults run meanwhile."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(rejected_watch(watched))
        watched.expect(STALE)
        yield stack


@each_fault(OF_OUTAGES)
async def test_an_outage_fires_its_alert_and_no_other(watched: ObservedCluster, fault: Fault):
    await fires_exactly_its_alert(watched, fault)


@each_fault(OF_KEYS)
async def test_a_fault_fires_its_alert_and_no_other(
    watched: ObservedCluster, staling: AsyncExitStack, fault: Fault
):
    await fires_exactly_its_alert(watched, fault, begun=frozenset({STALE}))


async def test_a_rejected_watch_fires_its_alert_until_it_is_accepted(
    watched: ObservedCluster, staling: AsyncExitStack
):
    await watched.until_fires(STALE)
    assert await watched.read_label(STALE, "resource") == "nodes"
    await staling.aclose()
    await watched.until_gone(STALE)


@each_fault(LAST)
async def test_a_fault_that_stops_every_service_fires_its_alert_and_no_other(
    watched: ObservedCluster, fault: Fault
):
    await fires_exactly_its_alert(watched, fault)


async def test_after_all_faults_no_alert_fires_and_no_other_has_fired(watched: ObservedCluster):
    await watched.until_quiet()
    expected = {STALE} | {fault.alert for fault in (*OF_OUTAGES, *OF_KEYS, *LAST)}
    assert await watched.fired_within(900) == expected
