"""What must hold at every moment of a run, by its history alone. One function per invariant. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from libs.common.contract.services import LIFECYCLE_LEASE_NAME
from libs.testbed.control_plane.audit_log import AuditEntry
from tests.chaos.expectation import Expectation, Undisturbed
from tests.chaos.history import History, NodeState, is_ours
from tests.pod_cidrs import OwnedBlock, list_overlapping

NO_HOLDER: Final = "no process"
MOST_REQUESTS: Final = 3.0  # per node, as a multiple of the undisturbed run
Finding = tuple[str, str]  # the object, and how the invariant was violated
# These two need more than a history: the present objects, and the logs and messages.
END_STATE: Final = "end state as undisturbed"
NO_CREDENTIAL: Final = "no credential in a log or message"


class Violation(msgspec.Struct, frozen=True):
    """An invariant that did not hold, for which object, and how."""

    invariant: str
    about: str
    message: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.about}: {self.message}"


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that the invariants of one run are judged by."""

    history: History
    expected: Expectation
    undisturbed: Undisturbed
    joined: int  # Nodes that have joined, a Node that returns counted again


def _find_early_taint_removals(e: Evidence) -> Iterator[Finding]:
    for before, after in e.history.changes():
        if before.is_initialized or not after.is_initialized:
            continue
        needed = set(e.undisturbed.first_addresses.get(after.name, ()))
        needed -= {each for each in needed if each[1] in e.expected.moving.get(after.name, ())}
        if missing := sorted(needed - set(after.addresses)):
            yield after.name, f"lost the uninitialized taint before it had {missing}"


def _find_shrunk_addresses(e: Evidence) -> Iterator[Finding]:
    for before, after in e.history.changes():
        moving = e.expected.moving.get(after.name, frozenset())
        lost = [each for each in before.addresses if each not in after.addresses and each[1] not in moving]
        if before.is_initialized and lost:
            yield after.name, f"lost {lost} at resourceVersion {after.version}"


def _find_wrong_approvals(e: Evidence) -> Iterator[Finding]:
    for request in e.history.last_requests():
        if "Approved" in request.conditions and request.digest not in e.expected.legitimate:
            yield request.name, f"of {request.user} was approved, and is not legitimate"
        if request.digest in e.expected.untouched and request.conditions:
            yield request.name, f"is for another signer, and got {sorted(request.conditions)}"
        if "Denied" in request.conditions and request.digest in e.expected.legitimate:
            yield request.name, f"of {request.user} was denied, and is legitimate"


def _find_shared_pod_cidrs(e: Evidence) -> Iterator[Finding]:
    """Not even two Nodes at different times may share a block: the quarantine is longer than a run.

    A restored etcd has lost the claims that followed the backup, so their blocks are free again.
    """
    blocks: dict[int, set[OwnedBlock]] = defaultdict(set)
    for (uid, restores), states in e.history.nodes().items():
        blocks[restores] |= {
            OwnedBlock((state.name, uid), cidr) for state in states for cidr in state.pod_cidrs
        }
    for present in blocks.values():
        for one, other in list_overlapping(present):
            (name, uid), (other_name, other_uid) = one.owner, other.owner
            yield name, f"uid {uid} has {one.cidr}, and {other_name}, uid {other_uid}, has {other.cidr}"


def _find_changed_pod_cidrs(e: Evidence) -> Iterator[Finding]:
    for before, after in e.history.changes():
        if before.pod_cidrs and before.pod_cidrs != after.pod_cidrs:
            yield after.name, f"changed its pod CIDRs from {before.pod_cidrs} to {after.pod_cidrs}"


def _find_unproven_deletions(e: Evidence) -> Iterator[Finding]:
    for write in _list_deletions(e.history):
        if write.about not in e.expected.deletable:
            yield write.about, f"was deleted by {write.user}, and its machine is not provably gone"


def _find_writes_without_lease(e: Evidence) -> Iterator[Finding]:
    """The Lease of lifecycle: each process has its own address, so the audit log shows who renewed it."""
    renewals = _list_renewals(e.history)
    for deletion in _list_deletions(e.history):
        earlier = [renewal for renewal in renewals if renewal.answered <= deletion.received]
        holder, source = _find_holder(earlier[-1]) if earlier else NO_HOLDER, deletion.sources[0]
        if holder != source:
            yield deletion.about, f"was deleted from {source}, while {holder} held the Lease"
        elif (expiry := _compute_expiry(earlier[-1])) < deletion.received:
            late = (deletion.received - expiry).total_seconds()
            yield deletion.about, f"was deleted from {source}, {late:.1f} s after its Lease expired"


def _find_holder(renewal: AuditEntry) -> str:
    """The address of the process that holds the Lease by that write; a release has no holder."""
    return renewal.sources[0] if _get_hold(renewal)[0] else NO_HOLDER


def _list_renewals(history: History) -> list[AuditEntry]:
    """The writes that changed the holder or the time of renewal; others only record deletions."""
    leases = [w for w in history.writes if w.resource == "leases" and w.about == LIFECYCLE_LEASE_NAME]
    renewals: list[AuditEntry] = []
    for write in leases:
        if write.succeeded and (not renewals or _get_hold(write) != _get_hold(renewals[-1])):
            renewals.append(write)
    return renewals


def _get_hold(lease: AuditEntry) -> tuple[Any, Any]:
    spec = lease.answer["spec"]
    return spec.get("holderIdentity"), spec.get("renewTime")


def _find_changed_operator_keys(e: Evidence) -> Iterator[Finding]:
    for states in e.history.nodes().values():
        keys = e.expected.operator_keys.get(states[0].name)
        if keys is None:
            continue
        for kind, wanted in (("labels", keys.labels), ("annotations", keys.annotations)):
            yield from _find_changed_pairs(states, kind, wanted)
        for state in states:
            if lost := [taint for taint in keys.taints if taint not in state.taints]:
                yield state.name, f"lost the operator's taints {lost} at resourceVersion {state.version}"


def _find_changed_pairs(
    states: Iterable[NodeState], kind: str, wanted: Mapping[str, str]
) -> Iterator[Finding]:
    """A key counts from the state on in which the operator has written it."""
    written: set[str] = set()
    for state in states:
        present = getattr(state, kind)
        written |= {key for key in wanted if present.get(key) == wanted[key]}
        for key in sorted(written):
            if present.get(key) != wanted[key]:
                yield state.name, f"the operator's {kind}[{key}] became {present.get(key)!r}"


def _find_request_storms(e: Evidence) -> Iterator[Finding]:
    per_node = sum(e.history.request_counts.values()) / e.joined
    if per_node >= MOST_REQUESTS * e.undisturbed.requests_per_node:
        most = ", ".join(
            f"{n} {what}" for what, n in sorted(e.history.request_counts.items(), key=lambda c: -c[1])[:4]
        )
        yield (
            "all Nodes",
            f"{per_node:.1f} requests per Node, undisturbed {e.undisturbed.requests_per_node:.1f}: {most}",
        )


INVARIANTS: Final[Mapping[str, Callable[[Evidence], Iterator[Finding]]]] = {
    "addresses before taint removal": _find_early_taint_removals,
    "addresses never shrink": _find_shrunk_addresses,
    "only legitimate requests are approved": _find_wrong_approvals,
    "pod CIDRs are disjoint": _find_shared_pod_cidrs,
    "pod CIDRs never change": _find_changed_pod_cidrs,
    "no deletion without proof": _find_unproven_deletions,
    "no write without the Lease": _find_writes_without_lease,
    "operator's keys stay": _find_changed_operator_keys,
    "no request storm": _find_request_storms,
}


def find_violations(evidence: Evidence) -> list[Violation]:
    """Every violation in a history."""
    return [
        Violation(name, about, message)
        for name, find in INVARIANTS.items()
        for about, message in find(evidence)
    ]


def _list_deletions(history: History) -> list[AuditEntry]:
    return [
        w
        for w in history.writes
        if is_ours(w) and w.verb == "delete" and w.resource == "nodes" and w.succeeded
    ]


def _compute_expiry(renewal: AuditEntry) -> datetime:
    """When another process may acquire the Lease, by the clock of kube-apiserver: those of processes jump.

    The holder measures from before it sends. The answer may be delayed, so it proves nothing.
    """
    return renewal.received + timedelta(seconds=renewal.answer["spec"]["leaseDurationSeconds"])
