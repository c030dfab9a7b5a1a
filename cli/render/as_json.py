"""Previews and comparisons as JSON, for programs. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from cli.render.against import Comparison
from cli.render.changes import Change, changes
from cli.render.config_in_use import ConfigInUse
from cli.render.gathering import Untold
from cli.render.preview import Preview
from services.labeler.plan import Notice
from services.labeler.rules import RuleResult


def previews_json(previews: Sequence[Preview], untold: Sequence[Untold], used: ConfigInUse) -> dict[str, Any]:
    """`patch` is the JSON Patch of the Node, `statusPatch` the strategic merge patch of its status."""
    return {
        "config": used.source,
        "nodes": [_node(preview, used) for preview in previews],
        "leftOut": _left_out(untold),
    }


def comparison_json(comparison: Comparison, untold: Sequence[Untold]) -> dict[str, Any]:
    """Only the nodes that would change; the others by name."""
    return {
        "config": comparison.new,
        "against": comparison.old,
        "nodes": [
            {
                "name": each.name,
                "platform": each.platform,
                "changes": _changes(each.changes),
                "events": _events(each.notices),
            }
            for each in comparison.different
        ],
        "unchanged": list(comparison.same),
        "leftOut": _left_out(untold),
    }


def _node(preview: Preview, used: ConfigInUse) -> dict[str, Any]:
    return {
        "name": preview.name,
        "platform": preview.platform.platform,
        "outcome": preview.plan.outcome,
        "reason": preview.plan.reason,
        "rules": [_rule(told, used) for told in preview.effects.results],
        "changes": _changes(changes(preview.described.node, preview.after)),
        "events": _events(preview.plan.notices),
        "patch": preview.node_patch,
        "statusPatch": preview.status_patch,
    }


def _rule(told: RuleResult, used: ConfigInUse) -> dict[str, Any]:
    return {
        "rule": told.rule,
        "index": told.index,
        "judged": told.is_evaluated,
        "matched": told.is_matched,
        "why": told.reason,
        "entries": [
            {
                "kind": entry.kind,
                "key": entry.key,
                "template": used.template_of(told.index, entry.kind, entry.key),
                "rendered": entry.rendered,
                "value": entry.value,
                "problem": entry.problem,
            }
            for entry in told.entries
        ],
    }


def _changes(found: Iterable[Change]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(change) for change in found]


def _events(notices: Iterable[Notice]) -> list[dict[str, str]]:
    return [{"reason": notice.reason, "message": notice.message} for notice in notices]


def _left_out(untold: Iterable[Untold]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(each) for each in untold]
