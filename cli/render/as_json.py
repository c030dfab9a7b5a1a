"""Previews and comparisons as JSON. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

from cli.render.compiled_config import CompiledConfig
from cli.render.node_selection import SkippedNode
from cli.render.preview import Comparison, Preview
from services.labeler.core.notice import Notice
from services.labeler.core.rules import RuleResult


def previews_to_json(
    previews: Sequence[Preview], skipped: Sequence[SkippedNode], used: CompiledConfig
) -> dict[str, Any]:
    """Return the JSON document.

    `patch` is the JSON Patch of the Node, `statusPatch` the strategic merge patch of its status.
    """
    nodes = [
        {
            "name": preview.described.name,
            "platform": preview.described.facts.platform.platform,
            "outcome": preview.plan.outcome,
            "reason": preview.plan.reason,
            "rules": [_rule_to_json(result, used) for result in preview.effects.results],
            "changes": preview.changes,
            "keptKeys": preview.kept_keys,
            "events": _events_to_json(preview.plan.notices),
            "patch": preview.node_patch,
            "statusPatch": preview.status_patch,
        }
        for preview in previews
    ]
    return {"config": used.source, "nodes": nodes, "leftOut": skipped}


def comparison_to_json(comparison: Comparison, skipped: Sequence[SkippedNode]) -> dict[str, Any]:
    """Return the nodes that would change in full, the others by name."""
    nodes = [
        {
            "name": each.name,
            "platform": each.platform,
            "changes": each.changes,
            "events": _events_to_json(each.notices),
        }
        for each in comparison.different
    ]
    return {
        "config": comparison.new,
        "against": comparison.old,
        "nodes": nodes,
        "unchanged": comparison.same,
        "leftOut": skipped,
    }


def _rule_to_json(result: RuleResult, used: CompiledConfig) -> dict[str, Any]:
    return {
        "rule": result.rule,
        "index": result.index,
        "judged": result.is_evaluated,
        "matched": result.is_matched,
        "why": result.reason,
        "entries": [
            {
                "kind": entry.kind,
                "key": entry.key,
                "template": used.get_template(result.index, entry.kind, entry.key),
                "rendered": entry.rendered,
                "value": entry.value,
                "problem": entry.problem,
            }
            for entry in result.entries
        ],
    }


def _events_to_json(notices: Iterable[Notice]) -> list[dict[str, str]]:
    return [{"reason": notice.reason, "message": notice.message} for notice in notices]
