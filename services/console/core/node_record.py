"""What the console keeps of one Node: the fields of its row, its hops, and the last decisions. Pure."""

from datetime import datetime
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from libs.common.contract import events
from libs.common.contract.instances import InstanceRecord, read_instance_record
from libs.common.contract.ip_addresses import parse_ip
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.machine_loss import MachineLoss, find_machine_loss, select_own_reports
from libs.common.contract.node import (
    BLOCKED_CONDITION,
    CONTROL_PLANE_LABEL,
    NETWORK_UNAVAILABLE,
    NO_ROUTE_CREATED,
    Node,
    NodeCondition,
)
from libs.common.contract.services import IPAM, LABELER

_RequiredHop = Literal["registered", "observed", "queried", "enriched", "initialized", "untainted"]
HopName = _RequiredHop | Literal["allocated", "ready", "requested", "approved", "issued"]  # keys of hops.tsx
NodeState = Literal["stuck", "joining", "ready", "foreign"]
RequestState = Literal["pending", "denied", "failed", "approved", "issued"]  # of its certificate
InstanceState = Literal["exists", "off", "gone", "unknown"]
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
REGION_LABEL: Final = "topology.kubernetes.io/region"
TYPE_LABEL: Final = "node.kubernetes.io/instance-type"
_PLATFORM_LABEL: Final = "node.cloudprovider.kubernetes.io/platform"
_HOP_OF_OUTCOME: Final[dict[tuple[str, str], HopName]] = {
    (LABELER.service, "initialized"): "initialized",
    (IPAM.service, "allocated"): "allocated",
}
# The first that an account reports counts: an instance of one project is missing in the others.
_INSTANCE_STATES: Final[dict[type, InstanceState]] = {
    events.InstanceExists: "exists",
    events.InstanceShutDown: "off",
    events.InstanceGone: "gone",
    events.InstanceUnknown: "unknown",
}
_MAX_EVENTS: Final = 10
_encode = msgspec.json.Encoder().encode


class NodeRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of the table of Nodes."""

    name: str
    state: NodeState
    created: float
    step: str = ""
    what: str = ""
    why: str = ""
    platform: str = ""
    zone: str = ""
    region: str = ""
    type: str = ""
    role: str = ""
    addresses: tuple[str, ...] = ()
    cidrs: tuple[str, ...] = ()
    certificate: RequestState | Literal[""] = ""
    instance: InstanceState | Literal[""] = ""  # by its cloud
    instance_why: str = ""
    route: str = ""  # what its cloud routes to its pods, or why nothing
    rules: tuple[str, ...] = ()  # that match it
    decided_by: str = ""
    outcome: str = ""
    took: float = 0.0  # seconds from the registration to the initialization


class NodeRecord(msgspec.Struct, kw_only=True):
    """One Node. Times are seconds since 1970; 0 = unknown."""

    name: str
    base: NodeRow  # the fields of the row that follow from the Node and its machine alone
    row: NodeRow  # what the page shows
    uid: str = ""
    version: int = 0  # of the state at the last change of the row
    is_observed: bool = False  # the watcher has published it
    is_initialized: bool = False
    deleted_at: float = 0.0
    ready: NodeCondition | None = None
    blocked: NodeCondition | None = None
    has_not_ready_taint: bool = False
    provider_id: str = ""
    provided_ip: str = ""
    observed_at: float = 0.0
    enriched_at: float = 0.0
    published: tuple[int, float] = (0, 0.0)  # sequence and time of metadata's last message
    fault: MachineFault | None = None
    is_unrouted: bool = False
    instances: dict[str, events.InstanceReport] = {}  # by account
    instance_record: InstanceRecord | None = None  # that an account has shown its instance alive
    decisions: dict[str, events.Decided] = {}  # by service
    dead_letters: dict[str, str] = {}  # service -> reason
    hops: dict[HopName, float] = {}
    recorded: tuple[events.RecordedNodeEvent, ...] = ()  # newest first; also of a former Node of this name
    before: bytes = b""  # JSON of the Node as first observed, while it was not initialized

    @property
    def talosctl_address(self) -> str:
        """The address for a talosctl command that people run: only a valid address, else the Node name."""
        candidates = (*self.base.addresses, self.provided_ip.partition(",")[0])
        return next((text for text in candidates if parse_ip(text) and "%" not in text), self.name)


def seconds_of(at: datetime | None) -> float:
    """Return the time as seconds since 1970, 0 for none."""
    return at.timestamp() if at is not None else 0.0


def apply_observed(
    record: NodeRecord, event: events.NodeObserved, published_at: float, *, live: bool
) -> None:
    """Apply the state of the Node in Kubernetes; `live`: the message was published while we followed."""
    node = event.node
    was_initialized, was_ready = record.is_initialized, is_ready(record)
    is_first = not record.is_observed
    _set_fields(record, node)
    record.is_observed, record.observed_at = True, seconds_of(event.observed_at)
    record.hops.setdefault("registered", record.base.created)
    if is_first and not record.is_initialized:
        record.before = _encode(node)
    if not live:
        return
    if is_first:
        record.hops.setdefault("observed", published_at)
    elif record.is_initialized and not was_initialized:
        record.hops["untainted"] = published_at
    if is_ready(record) and not was_ready:
        record.hops.setdefault("ready", published_at)


def _set_fields(record: NodeRecord, node: Node) -> None:
    labels = node.labels
    record.uid = node.uid
    record.deleted_at = seconds_of(node.metadata.deletion_timestamp)
    record.is_initialized = node.is_initialized
    record.ready = node.find_condition("Ready")
    record.blocked = node.find_condition(BLOCKED_CONDITION)
    no_route = node.find_condition(NETWORK_UNAVAILABLE)
    record.is_unrouted = no_route is not None and no_route.reason == NO_ROUTE_CREATED
    record.has_not_ready_taint = any(t.key == "node.kubernetes.io/not-ready" for t in node.spec.taints)
    record.provider_id, record.instance_record = node.spec.provider_id, read_instance_record(node)
    record.provided_ip = node.provided_node_ip
    addresses = tuple(a.address for a in node.status.addresses if a.type.endswith("IP"))
    record.base = replace(
        record.base,
        created=seconds_of(node.metadata.creation_timestamp),
        platform=labels.get(_PLATFORM_LABEL, "") or record.base.platform,
        zone=labels.get(ZONE_LABEL, ""),
        region=labels.get(REGION_LABEL, ""),
        type=labels.get(TYPE_LABEL, ""),
        role="control plane" if CONTROL_PLANE_LABEL in labels else "",
        addresses=addresses or tuple(filter(None, node.provided_node_ip.split(","))),
        cidrs=node.spec.pod_cidrs,
        route=no_route.message if no_route is not None else "",
    )


def is_ready(record: NodeRecord) -> bool:
    """Return whether the kubelet of the Node reports that it is ready."""
    return record.ready is not None and record.ready.status == "True"


def apply_enriched(
    record: NodeRecord, event: events.NodeEnriched | events.NodeUnreachable, *, live: bool
) -> None:
    """Apply what metadata knows of the machine."""
    record.enriched_at = seconds_of(event.enriched_at)
    if isinstance(event, events.NodeUnreachable):
        record.fault = event.fault
        _set_platform(record, event.last_known)
        return
    record.fault = None
    _set_platform(record, event.facts)
    if live and "initialized" not in record.hops:
        record.hops.setdefault("queried", seconds_of(event.facts.queried_at))
        record.hops.setdefault("enriched", record.enriched_at)


def _set_platform(record: NodeRecord, facts: MachineFacts | None) -> None:
    if facts is not None and facts.platform.platform:
        record.base = replace(record.base, platform=facts.platform.platform)


def apply_decided(record: NodeRecord, decided: events.Decided) -> None:
    """Apply the decision of a service; its time is exact even if it was published before we followed."""
    record.decisions = {**record.decisions, decided.service: decided}
    if decided.service in record.dead_letters:  # it has processed a later message
        others = {key: why for key, why in record.dead_letters.items() if key != decided.service}
        record.dead_letters = others
    hop = _HOP_OF_OUTCOME.get((decided.service, decided.outcome))
    if hop is not None:
        record.hops.setdefault(hop, seconds_of(decided.decided_at))


def add_event(record: NodeRecord, event: events.RecordedNodeEvent) -> None:
    """Keep an Event, once: processes share their work, and the stream repeats its last messages."""
    is_same = (event.component, event.reason, event.message)
    others = (each for each in record.recorded if (each.component, each.reason, each.message) != is_same)
    record.recorded = tuple(sorted((event, *others), key=lambda each: each.at, reverse=True)[:_MAX_EVENTS])


def find_loss(record: NodeRecord) -> MachineLoss | None:
    """Return how a Node that is not ready lost its server; None if no account reports that."""
    answers = record.fault is None if record.enriched_at else None
    loss = find_machine_loss(_select_reports(record), record.instance_record, answers=answers)
    return None if is_ready(record) or loss is None or loss.kind == "silent" else loss


def _select_reports(record: NodeRecord) -> tuple[events.InstanceReport, ...]:
    reports = (record.instances[account] for account in sorted(record.instances))
    return select_own_reports(reports, record.uid, record.provider_id)


def describe_instance(record: NodeRecord) -> tuple[InstanceState | Literal[""], str]:
    """Return the state of the Node's instance and the reason, ("", "") if no account has reported on it."""
    for kind, state in _INSTANCE_STATES.items():
        for report in _select_reports(record):
            if isinstance(report, kind):
                return (
                    state,
                    f"account {report.account}: {getattr(report, 'reason', '') or record.provider_id}",
                )
    return "", ""
