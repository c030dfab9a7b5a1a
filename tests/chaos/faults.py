"""The table of all faults. A seed chooses by the order of the rows."""

from collections.abc import Sequence
from typing import Final

from libs.common.contract.services import CSR, IPAM, LABELER, SERVICES, WATCHER
from libs.common.contract.subjects import STREAM
from libs.testbed.service_permissions import get_user_name
from libs.testbed.sim_apiserver.faults import (
    ConflictFault,
    EmptyClose,
    ExpiredFault,
    HalfOpenFault,
    TooManyRequestsFault,
)
from tests.chaos import fault_actions as act
from tests.chaos.cluster import CLUSTERED_MODES, SEPARATE_MODES, SINGLE_SERVER_MODES, Mode
from tests.chaos.fault import Fault
from tests.chaos.links import BLACK_HOLE, CUT, PROCESS_LINKS, LinkState
from tests.chaos.workload import make_impostor

_MOMENT: Final = (0.0, 0.0)
_HOUR: Final = 3600.0
# The API server accepts a revoked token for up to 10 s if it has accepted it before.
_LONGER_THAN_ITS_CACHE: Final = (13.0, 17.0)
_ROTATION_SECONDS: Final = (18.0, 20.0)  # between two rotations of all keys
_EVERY_VERB: Final = ("get", "list", "watch", "create", "update", "patch", "delete")
_LINK_STATES: Final = {
    "cut": CUT,
    "delayed": LinkState(delay_seconds=0.4),
    "throttled": LinkState(bytes_per_second=30_000),
    "one-way": LinkState(blocked=("to-client",)),  # requests arrive, answers do not
    "black-holed": BLACK_HOLE,
}
_NATS_FAULTS: Final = (
    Fault("nats-killed", "nats", lambda s: s.cluster.nats.kill(), lambda s: s.cluster.nats.restart()),
    Fault("nats-paused", "nats", lambda s: s.cluster.nats.pause(), lambda s: s.cluster.nats.resume()),
    Fault("nats-wiped", "nats", lambda s: s.cluster.nats.wipe(), hold_seconds=_MOMENT),
    Fault("nats-disk-full", "nats", lambda s: s.cluster.nats.fill(), act.empty_disks),
    # No key may delete the stream, and only the watcher's key may delete consumers.
    Fault(
        "stream-deleted",
        "nats",
        lambda s: s.cluster.nats.call_jetstream(f"STREAM.DELETE.{STREAM}"),
        hold_seconds=_MOMENT,
        modes=SINGLE_SERVER_MODES,
    ),
    Fault("consumers-deleted", "nats", act.delete_consumers, hold_seconds=_MOMENT, modes=SINGLE_SERVER_MODES),
    Fault(
        "nats-leader-killed",
        "nats",
        act.kill_leader,
        lambda s: s.cluster.nats.restart(),
        modes=CLUSTERED_MODES,
    ),
    Fault(
        "nats-leader-paused",
        "nats",
        act.pause_leader,
        lambda s: s.cluster.nats.resume(),
        modes=CLUSTERED_MODES,
    ),
    Fault("nats-follower-wiped", "nats", act.wipe_follower, hold_seconds=_MOMENT, modes=CLUSTERED_MODES),
    # The keys of all services are replaced; their connections end, and they read the new ones.
    Fault(
        "nats-credentials-rotated",
        "nats-credentials",
        lambda s: s.cluster.rotate_nats_keys(),
        lambda s: s.cluster.rotate_nats_keys(),
        hold_seconds=_ROTATION_SECONDS,
        modes=CLUSTERED_MODES,
    ),
)
_APISERVER_FAULTS: Final = (
    Fault(
        "apiserver-killed",
        "apiserver",
        lambda s: s.cluster.control_plane.apiserver.kill(),
        lambda s: s.cluster.control_plane.restart_apiserver(),
    ),
    Fault(
        "apiserver-paused",
        "apiserver",
        lambda s: s.cluster.control_plane.apiserver.pause(),
        lambda s: s.cluster.control_plane.apiserver.resume(),
    ),
    Fault(
        "etcd-paused",
        "apiserver",
        lambda s: s.cluster.control_plane.etcd.pause(),
        lambda s: s.cluster.control_plane.etcd.resume(),
    ),
    Fault("etcd-restored", "apiserver", act.back_up_etcd, act.restore_etcd),
    act.make_answer_fault("api-429", TooManyRequestsFault(retry_after_seconds=1), _EVERY_VERB, every=2),
    act.make_answer_fault("api-410", ExpiredFault(), ("watch", "list")),
    act.make_answer_fault("api-conflicts", ConflictFault(), ("update", "patch"), every=2),
    act.make_answer_fault("api-watch-half-open", HalfOpenFault(), ("watch",)),
    act.make_answer_fault("api-watch-empty-closes", EmptyClose(), ("watch",)),
    act.make_webhook_fault("webhook-hangs", hangs=True),
    act.make_webhook_fault("webhook-denies", hangs=False),
    Fault(
        "kubernetes-credentials-rotated",
        "tokens",
        act.rotate_tokens,
        act.rotate_tokens,
        hold_seconds=_LONGER_THAN_ITS_CACHE,
    ),
    Fault(
        "kubernetes-credentials-revoked",
        "tokens",
        act.revoke_tokens,
        act.rotate_tokens,
        hold_seconds=_LONGER_THAN_ITS_CACHE,
    ),
)
_LINK_FAULTS: Final = (
    *(
        act.make_link_fault(f"{link}-link-{name}", link, state)
        for link in PROCESS_LINKS
        for name, state in _LINK_STATES.items()
    ),
    # Only the first watcher is affected. The other replica still reaches everything.
    act.make_link_fault("nats-link-of-one-watcher-cut", "nats", CUT, process="watcher"),
    act.make_link_fault("api-link-of-one-watcher-black-holed", "api", BLACK_HOLE, process="watcher"),
    Fault(
        "collector-black-holed",
        "collector-link",  # it stays silent until the run has ended
        lambda s: s.cluster.links.set_state("collector", BLACK_HOLE),
        hold_seconds=_MOMENT,
    ),
)
_PROCESS_FAULTS: Final = (
    *(fault for spec in SERVICES for fault in act.list_process_faults(spec.service, SEPARATE_MODES)),
    *act.list_process_faults("all-in-one", ("all-in-one",)),
    *(
        act.make_clock_fault(f"clock-jump-{direction}{suffix}", seconds, is_everywhere=not suffix)
        for direction, seconds in (("forward", _HOUR), ("back", -_HOUR))
        for suffix in ("", "-in-one-replica")
    ),
)
_MACHINE_FAULTS: Final = (
    Fault(
        "machine-stopped",
        "machine-1",
        lambda s: s.fleet.silence(act.STOPPED),
        lambda s: s.fleet.start(s.workload.machines[act.STOPPED]),
    ),
    Fault(
        "wrong-machine-answers",
        "machine-2",
        lambda s: s.fleet.run_unknown(make_impostor(s.workload.machines[act.IMPERSONATED])),
        lambda s: s.fleet.stop_unknown(
            make_impostor(s.workload.machines[act.IMPERSONATED]), act.IMPERSONATED
        ),
    ),
    act.make_machine_fault("machine-hangs", hang=True),
    act.make_machine_fault("machine-slow", delay_ms=3000),
    act.make_machine_fault(
        "machine-without-addresses",
        not_found=["NodeAddresses.net.talos.dev", "AddressStatuses.net.talos.dev"],
    ),
    act.make_machine_fault("machine-rejects-role", permission_denied=True),
    Fault(
        "talos-certificates-rotated",
        "talos-certificates",
        act.rotate_talos_certificates,
        lambda s: s.cluster.write_talosconfigs(),
    ),
    act.make_right_fault(get_user_name(WATCHER), "right-to-list-nodes"),
    act.make_right_fault(get_user_name(LABELER), "right-to-patch-nodes"),
    act.make_right_fault(get_user_name(CSR), "right-to-approve"),
    act.make_right_fault(get_user_name(IPAM), "right-to-allocate"),
)
FAULTS: Final[Sequence[Fault]] = (
    *_NATS_FAULTS,
    *_APISERVER_FAULTS,
    *_LINK_FAULTS,
    *_PROCESS_FAULTS,
    *_MACHINE_FAULTS,
    act.make_installation_fault(),
)


def list_faults(mode: Mode) -> list[Fault]:
    """The faults that can occur in that mode."""
    return [fault for fault in FAULTS if mode in fault.modes]


def get_fault(name: str) -> Fault:
    """The fault of that name. Raises KeyError."""
    return {fault.name: fault for fault in FAULTS}[name]
