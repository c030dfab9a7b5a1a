"""The faults and the alerts that they fire, in the order of the runs."""

import time
from collections.abc import Sequence
from typing import Final

import pytest

from tests.observe import faults
from tests.observe.faults import Fault
from tests.observe.observed_cluster import ObservedCluster

# This fault takes more than a minute, so it starts before the others.
STALLED: Final = "TalosCCMConsumerStalled"
OF_MACHINES: Final = (
    Fault(faults.silent_machine, "TalosCCMNodeUninitializedTooLong"),
    Fault(faults.ending_credential, "TalosCCMTalosCertificateExpiring"),
    Fault(faults.broken_file, "TalosCCMRulesReloadFailed"),
    Fault(faults.foreign_allocator, "TalosCCMIPAMForeignAllocator"),
    Fault(faults.almost_full_pool, "TalosCCMIPAMPoolAlmostFull"),
    Fault(faults.exhausted_pool, "TalosCCMIPAMExhausted"),
    Fault(faults.replaced_machine, "TalosCCMLifecycleCapped"),
    Fault(faults.revoked_token, "TalosCCMCloudNotAnswering"),
    Fault(faults.greedy_client, "TalosCCMCloudRateLimitLow"),
    Fault(faults.deleted_servers, "TalosCCMCloudInstancesGone"),
    Fault(faults.detached_server, "TalosCCMRoutesMissing"),
    Fault(faults.full_network, "TalosCCMNetworkRoutesAlmostFull"),
    Fault(faults.stolen_lease, "TalosCCMNoLifecycleLeader"),
    Fault(faults.silent_endpoint, "TalosCCMTalosAPIErrors"),
)

STALE: Final = "TalosCCMWatchStale"
OF_OUTAGES: Final = (
    Fault(faults.no_watcher, "TalosCCMNoLeader"),
    Fault(faults.no_nats, "TalosCCMBusDisconnected"),
)
OF_KEYS: Final = (
    Fault(faults.hostile_request, "TalosCCMCSRDenied"),
    Fault(faults.no_signer, "TalosCCMCSRNotIssued"),
    Fault(faults.wrong_key, "TalosCCMPermissionViolations"),
    Fault(faults.old_authority, "TalosCCMNATSCertificateExpiring"),
    Fault(faults.starved_process, "TalosCCMEventLoopLag"),
    Fault(faults.unreadable_message, "TalosCCMDeadLetters"),
)
# Emptying the stream removes the messages of the faults above; all services then publish again.
LAST: Final = (
    Fault(faults.flooded_stream, "TalosCCMStreamAlmostFull"),
    Fault(faults.no_targets, "TalosCCMDown"),
)

TRIED: Final = {
    STALLED,
    STALE,
    *(fault.alert for fault in (*OF_MACHINES, *OF_OUTAGES, *OF_KEYS, *LAST)),
}
# Slow Nodes would first fire the alert on uninitialized Nodes, whose minutes are seconds here.
# A watcher without NATS also fires TalosCCMBusDisconnected.
# The observed account has no load balancers.
ONLY_BY_PROMTOOL: Final = {
    "TalosCCMTimeToReadySlow",
    "TalosCCMLeaderSilent",
    "TalosCCMLoadBalancersBlocked",
    "TalosCCMLoadBalancerOrphans",
}


_JUST_NOW_SECONDS = 3.0


def each_fault(some: Sequence[Fault]) -> pytest.MarkDecorator:
    """Run the test with each of these faults."""
    return pytest.mark.parametrize("fault", some, ids=lambda fault: fault.during.__name__)


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
