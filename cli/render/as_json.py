"""Previews and comparisons as JSON. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from cli.cluster.kept_keys import kept_keys_to_json
from cli.render.comparison import Comparison
from cli.render.compiled_config import CompiledConfig
from cli.render.node_changes import NodeChange, diff_nodes
from cli.render.node_selection import SkippedNode
from cli.render.preview import Preview
from services.labeler.plan import Notice
from services.labeler.rules import RuleResult


def previews_to_json(
    previews: Sequence[Preview], untold: Sequence[SkippedNode], used: CompiledConfig
) -> dict[str, Any]:
    """Return the JSON document.

    `patch` is the JSON Patch of the Node, `statusPatch` the strategic merge patch of its status.
    """
    return {
        "config": used.source,
        "nodes": [_preview_to_json(preview, used) for preview in previews],
        "leftOut": _skipped_to_json(untold),
    }


def comparison_to_json(comparison: Comparison, untold: Sequence[SkippedNode]) -> dict[str, Any]:
    """Return the nodes that would change in full, the others by name."""
    return {
        "config": comparison.new,
        "against": comparison.old,
        "nodes": [
            {
                "name": each.name,
                "platform": each.platform,
                "changes": _changes_to_json(each.changes),
                "events": _events_to_json(each.notices),
            }
            for each in comparison.different
        ],
        "unchanged": list(comparison.same),
        "leftOut": _skipped_to_json(untold),
    }


def _preview_to_json(preview: Preview, used: CompiledConfig) -> dict[str, Any]:
    return {
        "name": preview.described.name,
        "platform": preview.described.facts.platform.platform,
        "outcome": preview.plan.outcome,
        "reason": preview.plan.reason,
        "rules": [_rule_to_json(told, used) for told in preview.effects.results],
        "changes": _changes_to_json(diff_nodes(preview.described.node, preview.after)),
        "keptKeys": kept_keys_to_json(preview.kept_keys),
        "events": _events_to_json(preview.plan.notices),
        "patch": preview.node_patch,
        "statusPatch": preview.status_patch,
    }


def _rule_to_json(told: RuleResult, used: CompiledConfig) -> dict[str, Any]:
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
                "template": used.get_template(told.index, entry.kind, entry.key),
                "rendered": entry.rendered,
                "value": entry.value,
                "problem": entry.problem,
            }
            for entry in told.entries
        ],
    }


def _changes_to_json(found: Iterable[NodeChange]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(change) for change in found]


def _events_to_json(notices: Iterable[Notice]) -> list[dict[str, str]]:
    return [{"reason": notice.reason, "message": notice.message} for notice in notices]


def _skipped_to_json(untold: Iterable[SkippedNode]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(each) for each in untold]
