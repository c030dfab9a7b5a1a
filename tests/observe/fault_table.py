"""The faults and the alerts that they fire, in the order of the runs."""

import time
from collections.abc import Sequence
from typing import Final

import pytest

from tests.observe.faults import (
    Fault,
    almost_full_pool,
    broken_file,
    deleted_servers,
    detached_server,
    ending_credential,
    exhausted_pool,
    flooded_stream,
    foreign_allocator,
    full_network,
    greedy_client,
    hostile_request,
    no_nats,
    no_signer,
    no_targets,
    no_watcher,
    old_authority,
    replaced_machine,
    revoked_token,
    silent_endpoint,
    silent_machine,
    starved_process,
    stolen_lease,
    unreadable_message,
    wrong_key,
)
from tests.observe.observed_cluster import ObservedCluster

# This fault takes more than a minute, so it starts before the others.
STALLED: Final = "TalosCCMConsumerStalled"
OF_MACHINES: Final = (
    Fault(silent_machine, "TalosCCMNodeUninitializedTooLong"),
    Fault(ending_credential, "TalosCCMTalosCertificateExpiring"),
    Fault(broken_file, "TalosCCMRulesReloadFailed"),
    Fault(foreign_allocator, "TalosCCMIPAMForeignAllocator"),
    Fault(almost_full_pool, "TalosCCMIPAMPoolAlmostFull"),
    Fault(exhausted_pool, "TalosCCMIPAMExhausted"),
    Fault(replaced_machine, "TalosCCMLifecycleCapped"),
    Fault(revoked_token, "TalosCCMCloudNotAnswering"),
    Fault(greedy_client, "TalosCCMCloudRateLimitLow"),
    Fault(deleted_servers, "TalosCCMCloudInstancesGone"),
    Fault(detached_server, "TalosCCMRoutesMissing"),
    Fault(full_network, "TalosCCMNetworkRoutesAlmostFull"),
    Fault(stolen_lease, "TalosCCMNoLifecycleLeader"),
    Fault(silent_endpoint, "TalosCCMTalosAPIErrors"),
)

STALE: Final = "TalosCCMWatchStale"
OF_OUTAGES: Final = (
    Fault(no_watcher, "TalosCCMNoLeader"),
    Fault(no_nats, "TalosCCMBusDisconnected"),
)
OF_KEYS: Final = (
    Fault(hostile_request, "TalosCCMCSRDenied"),
    Fault(no_signer, "TalosCCMCSRNotIssued"),
    Fault(wrong_key, "TalosCCMPermissionViolations"),
    Fault(old_authority, "TalosCCMNATSCertificateExpiring"),
    Fault(starved_process, "TalosCCMEventLoopLag"),
    Fault(unreadable_message, "TalosCCMDeadLetters"),
)
# Emptying the stream removes the messages of the faults above; all services then publish again.
LAST: Final = (
    Fault(flooded_stream, "TalosCCMStreamAlmostFull"),
    Fault(no_targets, "TalosCCMDown"),
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
