"""Everything that the page shows about one Node, and what of it follows from objects. Pure."""

from typing import Literal

import msgspec

from libs.common.contract import events
from libs.common.contract.machine import PlatformMetadata
from libs.common.contract.node import Node
from services.console.core.findings import Finding
from services.console.core.node_record import NodeRow
from services.console.core.request_record import RequestRow


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a Node that was added or removed. A changed value is both."""

    kind: Literal["added", "removed"]
    field: str  # such as "label topology.kubernetes.io/zone"
    value: str  # "" of a field that is its own value


class NodeDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one Node."""

    row: NodeRow
    hops: dict[str, float]
    is_initialized: bool
    findings: tuple[Finding, ...]
    decisions: list[events.Decided]
    recorded: tuple[events.RecordedNodeEvent, ...]  # Events of our services, newest first
    recorded_since: float  # those from before are missing
    requests: list[RequestRow]
    changes: tuple[Change, ...] | None  # since its registration; None = it was initialized before we followed
    machine: PlatformMetadata | None  # by its last answer
    machine_problem: str  # why the last query failed, "" if it did not


def list_changes(before: Node, after: Node) -> tuple[Change, ...]:
    """Return what differs in the fields that services write: removed fields first."""
    old, new = _flatten(before), _flatten(after)
    removed = [
        Change(kind="removed", field=key, value=value) for key, value in old.items() if new.get(key) != value
    ]
    added = [
        Change(kind="added", field=key, value=value) for key, value in new.items() if old.get(key) != value
    ]
    return (*removed, *added)


def _flatten(node: Node) -> dict[str, str]:
    return {
        **{f"label {key}": value for key, value in node.metadata.labels.items()},
        **{f"annotation {key}": value for key, value in node.metadata.annotations.items()},
        **{f"taint {each.key}": f"{each.value}:{each.effect}" for each in node.spec.taints},
        **{f"address {each.type} {each.address}": "" for each in node.status.addresses},
        **{f"pod CIDR {each}": "" for each in node.spec.pod_cidrs},
        **({"providerID": node.spec.provider_id} if node.spec.provider_id else {}),
    }


def read_machine(event: events.Event | None) -> tuple[PlatformMetadata | None, str]:
    """Return what metadata published last about the machine, and why its last query failed."""
    match event:
        case events.NodeEnriched(facts=facts):
            return facts.platform, ""
        case events.NodeUnreachable(fault=fault, last_known=known, attempt=attempt):
            problem = f"{fault.step}: {fault.message} (attempt {attempt})"
            return (known.platform if known is not None else None), problem
    return None, ""
