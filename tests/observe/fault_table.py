"""Which fault fires which alert, in the order in which they are tried."""

from typing import Final

from tests.observe.faults import (
    Fault,
    almost_full_pool,
    broken_file,
    ending_credential,
    exhausted_pool,
    flooded_stream,
    foreign_allocator,
    hostile_request,
    no_nats,
    no_signer,
    no_watcher,
    nobody_to_scrape,
    old_authority,
    replaced_machine,
    silent_endpoint,
    silent_machine,
    starved_process,
    stolen_lease,
    unreadable_message,
    wrong_key,
)

# They take a minute and more, so they are begun before others.
STALLED: Final = "TalosCCMConsumerStalled"
OF_MACHINES: Final = (
    Fault(silent_machine, "TalosCCMNodeUninitializedTooLong"),
    Fault(ending_credential, "TalosCCMTalosCertificateExpiring"),
    Fault(broken_file, "TalosCCMRulesReloadFailed"),
    Fault(foreign_allocator, "TalosCCMIPAMForeignAllocator"),
    Fault(almost_full_pool, "TalosCCMIPAMPoolAlmostFull"),
    Fault(exhausted_pool, "TalosCCMIPAMExhausted"),
    Fault(replaced_machine, "TalosCCMLifecycleCapped"),
    Fault(stolen_lease, "TalosCCMNoLifecycleLeader"),
    Fault(silent_endpoint, "TalosCCMTalosAPIErrors"),
)

STALE: Final = "TalosCCMWatchStale"
OF_EVERYBODY: Final = (
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
# Emptying the stream ends what the faults above have left, and has all be said again by who hears of Nodes.
LAST: Final = (
    Fault(flooded_stream, "TalosCCMStreamAlmostFull"),
    Fault(nobody_to_scrape, "TalosCCMDown"),
)

TRIED: Final = {
    STALLED,
    STALE,
    *(fault.alert for fault in (*OF_MACHINES, *OF_EVERYBODY, *OF_KEYS, *LAST)),
}
# Nodes that wait so long would fire the alert on Nodes that wait first, a minute of which is a second here.
# A watcher that is cut off from NATS fires TalosCCMBusDisconnected as well.
ONLY_BY_PROMTOOL: Final = {"TalosCCMTimeToReadySlow", "TalosCCMLeaderSilent"}
