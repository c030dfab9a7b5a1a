"""What another config file would change on nodes that the present one has settled. Pure."""

from collections.abc import Iterable, Sequence

import msgspec

from cli.render.changes import Change, changes
from cli.render.config_in_use import ConfigInUse
from cli.render.described import DescribedNode
from cli.render.preview import settled
from services.labeler.plan import Notice, plan_node


class NodeDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What would become of one node."""

    name: str
    platform: str
    changes: tuple[Change, ...] = ()
    notices: tuple[Notice, ...] = ()  # Events that the new file leads to and the old one does not


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes."""

    old: str
    new: str
    different: tuple[NodeDifference, ...] = ()
    same: tuple[str, ...] = ()


def compare(nodes: Sequence[DescribedNode], old: ConfigInUse, new: ConfigInUse) -> Comparison:
    """Each node is brought to where `old` leaves it, then `new` takes over: what differs is the change's."""
    judged = [_difference(node, old, new) for node in nodes]
    return Comparison(
        old=old.source,
        new=new.source,
        different=tuple(each for each in judged if each.changes or each.notices),
        same=tuple(each.name for each in judged if not each.changes and not each.notices),
    )


def alike(different: Iterable[NodeDifference]) -> list[list[NodeDifference]]:
    """Nodes with the very same changes together, in the order of the first of them."""
    groups: dict[tuple[tuple[Change, ...], tuple[Notice, ...]], list[NodeDifference]] = {}
    for each in different:
        groups.setdefault((each.changes, each.notices), []).append(each)
    return list(groups.values())


def _difference(node: DescribedNode, old: ConfigInUse, new: ConfigInUse) -> NodeDifference:
    before = settled(node, old)
    after = settled(before, new)
    known = _notices(before, old)
    return NodeDifference(
        name=node.name,
        platform=node.facts.platform.platform,
        changes=changes(before.node, after.node),
        notices=tuple(notice for notice in _notices(after, new) if notice not in known),
    )


def _notices(node: DescribedNode, used: ConfigInUse) -> tuple[Notice, ...]:
    return plan_node(node.node, node.facts, node.recognized_by, used.config).notices
