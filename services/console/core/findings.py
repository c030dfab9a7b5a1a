"""Why a Node is not usable, as far as the stream shows it, in the texts of `talos-ccm explain node`. Pure."""

import shlex
from collections.abc import Iterator
from typing import Final

import msgspec

from libs.common.contract.fault_texts import FAULT_BY_BLOCK_REASON, fill_fault_text
from libs.common.contract.machine import FAULT_KINDS
from libs.common.contract.services import IPAM, LABELER, LIFECYCLE, METADATA
from libs.common.contract.signing_request import strip_prefix
from libs.common.contract.timestamp import parse_time
from services.console.core.node_record import (
    NodeRecord,
    find_loss,
    is_ready,
    seconds_of,
)
from services.console.core.request_record import RequestRecord

JOIN_SECONDS: Final = 30.0  # the labeler reports a blocked Node within this time
_KUBELET_SECONDS: Final = 60.0  # a kubelet becomes ready within this time
# Only the command line knows every clause that lets lifecycle delete a Node.
_FAULT_OF_LOSS: Final = {"off": "instance-shut-down", "gone": "instance-gone-kept"}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem of a Node."""

    fault: str  # a key of FAULT_TEXTS
    what: str  # the effect on the Node: what it is, or what it lacks
    cause: str
    fix: str  # with a command to copy


def list_findings(
    record: NodeRecord, request: RequestRecord | None, *, now: float, namespace: str
) -> tuple[Finding, ...]:
    """Return the problems of the Node in the order in which to fix them."""
    details = _list_faults(record, request, now)
    return tuple(_make_finding(record, request, fault, detail, namespace) for fault, detail in details)


def _make_finding(
    record: NodeRecord, request: RequestRecord | None, fault: str, detail: str, namespace: str
) -> Finding:
    loss = find_loss(record)
    words = fill_fault_text(
        fault,
        is_initialized=record.is_initialized,
        # quoted: the owner of an object chooses its name, and people copy the command
        node=shlex.quote(record.name),
        ip=shlex.quote(record.talosctl_address),
        detail=strip_prefix(detail).strip().rstrip("."),
        namespace=namespace,
        server=record.provider_id,
        account=loss.account if loss is not None else "",
        release="For the evidence and what to do: talos-ccm explain node {node}",
        csr=shlex.quote(request.name) if request is not None else "",
    )
    return Finding(fault=fault, what=words.what, cause=words.cause, fix=words.fix)


def _list_faults(record: NodeRecord, request: RequestRecord | None, now: float) -> Iterator[tuple[str, str]]:
    """Yield the key of each fault, and the detail."""
    if record.deleted_at:
        yield "being-deleted", "its deletion has begun"
        return
    loss = find_loss(record)
    if loss is not None:  # then the machine and its kubelet are silent, too
        decided = record.decisions.get(LIFECYCLE.service)
        detail = decided.reason if decided is not None else "lifecycle has not decided on it"
        yield _FAULT_OF_LOSS[loss.kind], detail
    else:
        yield from _list_initialization_faults(record, now)
        yield from _list_kubelet_faults(record, now)
    ipam = record.decisions.get(IPAM.service)
    if ipam is not None and ipam.outcome == "unserved" and not record.base.cidrs:
        yield "no-pod-cidr", ipam.reason
    if record.is_unrouted:
        yield "no-route", record.base.route
    if request is not None:
        yield from _list_certificate_faults(request, now)


def _list_initialization_faults(record: NodeRecord, now: float) -> Iterator[tuple[str, str]]:
    age = now - record.base.created
    for service in (METADATA.service, LABELER.service):
        if service in record.dead_letters:
            yield "defect", f"{service} could not process its message: {record.dead_letters[service]}"
            return
    if record.fault is not None and (record.is_initialized or record.blocked or age >= JOIN_SECONDS):
        yield FAULT_KINDS[record.fault.kind].text, f"{record.fault.step}: {record.fault.message}"
    elif not record.is_initialized:
        yield from _list_blockers(record, age)
    elif not record.provider_id and not record.provided_ip:
        yield "kubelet-not-external", ""


def _list_blockers(record: NodeRecord, age: float) -> Iterator[tuple[str, str]]:
    blocked, decided = record.blocked, record.decisions.get(LABELER.service)
    if blocked is not None and blocked.reason in FAULT_BY_BLOCK_REASON:
        yield FAULT_BY_BLOCK_REASON[blocked.reason], blocked.message
    elif not record.provided_ip:
        yield "no-node-ip", ""
    elif age < JOIN_SECONDS:
        return
    elif not record.enriched_at:
        yield "metadata-silent", f"the watcher published it {age:.0f} s after its registration or earlier"
    elif decided is not None:
        yield "write-refused", decided.reason
    else:
        yield "labeler-silent", "no decision of the labeler is in the stream"


def _list_kubelet_faults(record: NodeRecord, now: float) -> Iterator[tuple[str, str]]:
    ready = record.ready
    if now - record.base.created < _KUBELET_SECONDS and (ready is None or ready.status == "False"):
        return  # it usually waits for the network plugin
    if ready is None:
        yield "not-ready", "its kubelet has not reported yet"
    elif not is_ready(record):
        detail = ": ".join(filter(None, (ready.reason, ready.message))) or f"Ready is {ready.status}"
        yield "kubelet-silent" if ready.status == "Unknown" else "not-ready", detail
    elif (
        record.has_not_ready_taint
        and now - seconds_of(parse_time(ready.last_transition_time)) >= _KUBELET_SECONDS
    ):
        yield "not-ready-taint", "node.kubernetes.io/not-ready"


def _list_certificate_faults(request: RequestRecord, now: float) -> Iterator[tuple[str, str]]:
    decided = request.decided.reason if request.decided is not None else ""
    if request.state in ("denied", "failed"):
        yield "certificate-denied", request.reason or decided
    elif now - request.created < JOIN_SECONDS:
        return
    elif request.state == "approved":
        yield "certificate-not-signed", ""
    elif request.state == "pending":
        yield "certificate-waits", decided or "csr has not decided yet"
