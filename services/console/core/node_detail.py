"""Everything that the page shows about one Node, and what of it follows from objects. Pure."""

from typing import Literal

import msgspec

from libs.common.contract import events
from libs.common.contract.node import Node
from services.console.core.findings import Finding
from services.console.core.node_record import NodeRow
from services.console.core.request_record import RequestRow


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a Node that was added or removed. A changed value is both."""

    kind: Literal["added", "removed"]
    field: str  # such as "label topology.kubernetes.io/zone"
    value: str  # "" of a field that is its own value


class MachineRow(msgspec.Struct, frozen=True, kw_only=True):
    """What metadata published last about the machine of a Node."""

    problem: str  # why the last query failed, "" if it did not
    facts: tuple[tuple[str, str], ...]  # terms and values, of the last successful query


class NodeDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one Node."""

    row: NodeRow
    hops: dict[str, float]
    is_initialized: bool
    findings: tuple[Finding, ...]
    decisions: list[events.Decided]
    recorded: tuple[events.NodeEvent, ...]  # Events of our services, newest first
    recorded_since: float  # those from before are missing
    requests: list[RequestRow]
    changes: tuple[Change, ...] | None  # since its registration; None = it was initialized before we followed
    machine: MachineRow | None


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


def build_machine_row(event: events.NodeEnriched | events.NodeUnreachable) -> MachineRow:
    """Return what a message of metadata tells about the machine."""
    if isinstance(event, events.NodeEnriched):
        problem, facts = "", event.facts
    else:
        problem = f"{event.fault.step}: {event.fault.message} (attempt {event.attempt})"
        if event.last_known is None:
            return MachineRow(problem=problem, facts=())
        facts = event.last_known
    platform: dict[str, object] = msgspec.to_builtins(facts.platform)
    return MachineRow(
        problem=problem,
        facts=(
            *((key.replace("_", " "), _write(value)) for key, value in platform.items()),
            ("nodename", facts.node_name),
            ("answered at", facts.node_ip),
            *((each.link, each.address) for each in facts.addresses),
        ),
    )


def _write(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
