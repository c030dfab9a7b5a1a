"""What the labeler would do to a Node under a config file, or a change of it, by its own plan. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, get_args

import msgspec

from cli.cluster.kept_keys import KeptKeyReport, report_kept_keys
from cli.render.compiled_config import CompiledConfig
from libs.common.contract.events import NodeEnriched
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import (
    BLOCKED_CONDITION,
    FIELD_OWNERSHIP_ANNOTATION,
    FIELD_OWNERSHIP_DIGEST_LABEL,
    Node,
    Taint,
)
from libs.common.contract.node_patch import (
    NodeChanges,
    Operation,
    StatusPatch,
    build_node_patch,
    build_status_patch,
)
from services.labeler.core.blocker import Notice
from services.labeler.core.plan.plan import Plan
from services.labeler.core.plan.plan_node import plan_node
from services.labeler.core.rules.application import apply_rules
from services.labeler.core.rules.effects import RuleEffects

ChangeKind = Literal[
    "label", "annotation", "taint", "providerID", "address", "order of addresses", "condition", "record"
]
_READING_ORDER: Final[tuple[ChangeKind, ...]] = get_args(ChangeKind)


class NodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change; None means that the value is absent."""

    kind: ChangeKind
    key: str = ""  # for a taint key:Effect, because Kubernetes allows one per effect
    before: str | None
    after: str | None

    @property
    def diff_mark(self) -> str:
        """Return + for an added, - for a removed and ~ for a changed value."""
        if self.before is None:
            return "+"
        return "-" if self.after is None else "~"


def diff_nodes(before: Node, after: Node) -> tuple[NodeChange, ...]:
    """Return the changes in reading order.

    The ownership record appears only if nothing else changes.
    """
    old, new = _list_values(before), _list_values(after)
    changes = [change for kind in old for change in _diff_maps(kind, old[kind], new[kind])]
    changes += _diff_addresses(_format_addresses(before), _format_addresses(after))
    changes.sort(key=lambda change: _READING_ORDER.index(change.kind))
    return tuple([change for change in changes if change.kind != "record"] or changes)


def _list_values(node: Node) -> dict[ChangeKind, dict[str, str]]:
    """Return the values of a Node by kind and key, except addresses; "" is the key of a single value."""
    is_blocked = node.find_condition(BLOCKED_CONDITION) is not None
    single: dict[ChangeKind, str] = {
        "providerID": node.spec.provider_id,
        "condition": BLOCKED_CONDITION if is_blocked else "",
        "record": node.annotations.get(FIELD_OWNERSHIP_ANNOTATION, ""),
    }
    return {
        "label": {key: text for key, text in node.labels.items() if key != FIELD_OWNERSHIP_DIGEST_LABEL},
        "annotation": {
            key: text for key, text in node.annotations.items() if key != FIELD_OWNERSHIP_ANNOTATION
        },
        "taint": {f"{taint.key}:{taint.effect}": taint.value for taint in node.spec.taints},
        **{kind: {"": text} if text else {} for kind, text in single.items()},
    }


def _diff_maps(kind: ChangeKind, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[NodeChange]:
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            yield NodeChange(kind=kind, key=key, before=before.get(key), after=after.get(key))


def _diff_addresses(before: Sequence[str], after: Sequence[str]) -> Iterator[NodeChange]:
    for address in before:
        if address not in after:
            yield NodeChange(kind="address", before=address, after=None)
    for address in after:
        if address not in before:
            yield NodeChange(kind="address", before=None, after=address)
    if before != after and sorted(before) == sorted(after):
        yield NodeChange(kind="order of addresses", before=", ".join(before), after=", ".join(after))


def _format_addresses(node: Node) -> list[str]:
    return [f"{each.type} {each.address}" for each in node.status.addresses]


class NodeDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one Node, and the Events that come with them."""

    name: str
    platform: str
    changes: tuple[NodeChange, ...]
    notices: tuple[Notice, ...]  # of a comparison: those that only the new file causes

    @property
    def is_empty(self) -> bool:
        """Whether there is neither a change nor an Event."""
        return not self.changes and not self.notices


class Preview(NodeDifference, frozen=True, kw_only=True):
    """What one file does to a Node: the effects of the rules, and the patches that would be written."""

    facts: MachineFacts
    effects: RuleEffects
    plan: Plan
    after: Node  # the Node with the patches applied
    node_patch: list[Operation]
    status_patch: StatusPatch
    kept_keys: tuple[KeptKeyReport, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of all nodes on which the old file is fully applied."""

    old: str
    new: str
    different: tuple[NodeDifference, ...] = ()
    same: tuple[str, ...] = ()


def preview_node(event: NodeEnriched, used: CompiledConfig, *, now: datetime) -> Preview:
    """Return the preview of a Node. `now` is the time in the status patch."""
    node, facts, plan = event.node, event.facts, _plan(event, used)
    after = apply_plan(node, plan)
    return Preview(
        name=node.name,
        platform=facts.platform.platform,
        notices=plan.notices,
        facts=facts,
        effects=apply_rules(used.config.rules, facts),
        plan=plan,
        after=after,
        changes=diff_nodes(node, after),
        # The status is written first, and the other patch requires its addresses.
        node_patch=build_node_patch(msgspec.structs.replace(node, status=after.status), plan.changes),
        status_patch=build_status_patch(
            node,
            addresses=plan.addresses,
            remove_condition=BLOCKED_CONDITION if plan.removes_condition else "",
            now=now,
        ),
        kept_keys=report_kept_keys(node, plan.changes),
    )


def compare(nodes: Sequence[NodeEnriched], old: CompiledConfig, new: CompiledConfig) -> Comparison:
    """Apply `old` to each node, then `new`; the difference is the effect of the change."""
    judged = [_compare_node(node, old, new) for node in nodes]
    return Comparison(
        old=old.source,
        new=new.source,
        different=tuple(each for each in judged if not each.is_empty),
        same=tuple(each.name for each in judged if each.is_empty),
    )


def group_equal(different: Iterable[NodeDifference]) -> list[list[NodeDifference]]:
    """Group nodes with equal changes, in the order of their first node."""
    groups: dict[tuple[tuple[NodeChange, ...], tuple[Notice, ...]], list[NodeDifference]] = {}
    for each in different:
        groups.setdefault((each.changes, each.notices), []).append(each)
    return list(groups.values())


def _compare_node(event: NodeEnriched, old: CompiledConfig, new: CompiledConfig) -> NodeDifference:
    before = apply_config(event, old)
    after = apply_config(before, new)
    known = _plan(before, old).notices
    return NodeDifference(
        name=event.node.name,
        platform=event.facts.platform.platform,
        changes=diff_nodes(before.node, after.node),
        notices=tuple(notice for notice in _plan(after, new).notices if notice not in known),
    )


def _plan(event: NodeEnriched, used: CompiledConfig) -> Plan:
    return plan_node(event.node, event.facts, event.verified_by, used.config)


def apply_config(event: NodeEnriched, used: CompiledConfig) -> NodeEnriched:
    """Apply the labeler's plan under that config, after which it has no further change."""
    return msgspec.structs.replace(event, node=apply_plan(event.node, _plan(event, used)))


def apply_plan(node: Node, plan: Plan) -> Node:
    """Return the Node as the API server would return it after the plan is written."""
    changes = plan.changes
    metadata = msgspec.structs.replace(
        node.metadata,
        labels=_merge(node.labels, changes.labels),
        annotations=_merge(node.annotations, changes.annotations),
    )
    spec = msgspec.structs.replace(
        node.spec,
        provider_id=node.spec.provider_id or changes.provider_id or "",
        taints=_merge_taints(node.spec.taints, changes),
    )
    conditions = node.status.conditions
    if plan.removes_condition:
        conditions = tuple(each for each in conditions if each.type != BLOCKED_CONDITION)
    addresses = node.status.addresses if plan.addresses is None else plan.addresses
    status = msgspec.structs.replace(node.status, addresses=addresses, conditions=conditions)
    return msgspec.structs.replace(node, metadata=metadata, spec=spec, status=status)


def _merge(present: Mapping[str, str], changes: dict[str, str | None]) -> dict[str, str]:
    merged = {**present, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def _merge_taints(present: tuple[Taint, ...], changes: NodeChanges) -> tuple[Taint, ...]:
    """Apply taints as a patch does: matched by key and effect, replaced in place, new ones last."""
    wanted = {(taint.key, taint.effect): taint for taint in changes.set_taints}
    gone = {(taint.key, taint.effect) for taint in changes.remove_taints}
    kept = [wanted.pop((taint.key, taint.effect), taint) for taint in present]
    return tuple(taint for taint in (*kept, *wanted.values()) if (taint.key, taint.effect) not in gone)
