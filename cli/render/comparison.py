"""Compares two config files: the changes on nodes on which the old one is fully applied. Pure."""

from collections.abc import Iterable, Sequence

import msgspec

from cli.cluster.described_node import DescribedNode
from cli.render.compiled_config import CompiledConfig
from cli.render.node_changes import NodeChange, diff_nodes
from cli.render.preview import apply_until_stable
from services.labeler.plan import Notice, plan_node


class NodeDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one node."""

    name: str
    platform: str
    changes: tuple[NodeChange, ...] = ()
    notices: tuple[Notice, ...] = ()  # Events that only the new file causes


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of all nodes."""

    old: str
    new: str
    different: tuple[NodeDifference, ...] = ()
    same: tuple[str, ...] = ()


def compare(nodes: Sequence[DescribedNode], old: CompiledConfig, new: CompiledConfig) -> Comparison:
    """Apply `old` to each node until it is stable, then `new`; the difference is the effect of the change."""
    judged = [_compare_node(node, old, new) for node in nodes]
    return Comparison(
        old=old.source,
        new=new.source,
        different=tuple(each for each in judged if each.changes or each.notices),
        same=tuple(each.name for each in judged if not each.changes and not each.notices),
    )


def group_equal(different: Iterable[NodeDifference]) -> list[list[NodeDifference]]:
    """Group nodes with equal changes, in the order of their first node."""
    groups: dict[tuple[tuple[NodeChange, ...], tuple[Notice, ...]], list[NodeDifference]] = {}
    for each in different:
        groups.setdefault((each.changes, each.notices), []).append(each)
    return list(groups.values())


def _compare_node(node: DescribedNode, old: CompiledConfig, new: CompiledConfig) -> NodeDifference:
    before = apply_until_stable(node, old)
    after = apply_until_stable(before, new)
    known = _list_notices(before, old)
    return NodeDifference(
        name=node.name,
        platform=node.facts.platform.platform,
        changes=diff_nodes(before.node, after.node),
        notices=tuple(notice for notice in _list_notices(after, new) if notice not in known),
    )


def _list_notices(node: DescribedNode, used: CompiledConfig) -> tuple[Notice, ...]:
    return plan_node(node.node, node.facts, node.verified_by, used.config).notices
