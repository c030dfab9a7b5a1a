"""Previews and comparisons as text, the same on a terminal and in a pipe, or as JSON. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from rich.text import Text

from cli.cluster.kept_keys import format_kept_key
from cli.cluster.machine_events import describe_sources
from cli.lines import Line, blank_line, format_names, pluralize
from cli.render.compiled_config import CompiledConfig
from cli.render.node_selection import SkippedNode
from cli.render.preview import Comparison, NodeChange, NodeDifference, Preview, group_equal
from libs.common.cloud_config.findings import truncate_line
from services.labeler.core.blocker import Notice
from services.labeler.core.rules.effects import EntryResult, RuleResult

_MARKS: Final = {"+": "green", "-": "red", "~": "yellow"}
_MOST_NAMES: Final = 8
_LONGEST: Final = 200


def format_previews(
    previews: Sequence[Preview], skipped: Sequence[SkippedNode], used: CompiledConfig, *, with_summary: bool
) -> Iterator[Line]:
    """Yield the lines of all nodes, and the totals of several."""
    for number, each in enumerate(previews):
        yield from [blank_line()] if number else []
        yield from format_preview(each, used)
    if with_summary:
        yield from format_summary(previews, skipped)


def format_preview(preview: Preview, used: CompiledConfig) -> Iterator[Line]:
    """Yield the lines of one node: each rule with its result, then the changes."""
    metadata = preview.facts.platform
    parts = (metadata.platform, metadata.zone or metadata.region, metadata.instance_type)
    place = ", ".join(filter(None, parts))
    yield Line(0, Text.assemble((preview.name, "bold"), f"  {place}"))
    if sources := describe_sources(preview.facts):
        yield Line(2, Text(sources))
    for result in preview.effects.results:
        yield from _format_rule(result, used)
    yield from _format_plan(preview)


def format_comparison(comparison: Comparison) -> Iterator[Line]:
    """Yield the lines: nodes grouped by equal changes, then the counts."""
    for group in group_equal(comparison.different):
        yield from _format_group(group)
        yield Line(0, Text())
    yield from _format_totals(comparison.different)
    count, total = len(comparison.different), len(comparison.different) + len(comparison.same)
    what = f"{count} of {pluralize(total, 'node')} would change" if count else "No node would change"
    yield Line(0, Text.assemble((what, "bold"), f" from {comparison.old} to {comparison.new}"))


def format_summary(previews: Sequence[Preview], skipped: Sequence[SkippedNode]) -> Iterator[Line]:
    """Yield the totals of several nodes."""
    if previews:
        yield Line(0, Text())
    yield from _format_totals([each for each in previews if not each.is_empty])
    outcomes = Counter(each.plan.outcome for each in previews)
    counts = {
        "would change": sum(bool(each.changes) for each in previews),
        "cannot be initialized yet": outcomes["blocked"],
        "not managed": outcomes["not-ours"] + sum(each.expected for each in skipped),
        "skipped": sum(not each.expected for each in skipped),
    }
    texts = ", ".join(f"{count} {what}" for what, count in counts.items() if count or what == "would change")
    yield Line(0, Text(f"{pluralize(len(previews) + len(skipped), 'node')}: {texts}", style="bold"))


def format_skipped(skipped: Sequence[SkippedNode]) -> Iterator[Line]:
    """Yield the skipped nodes, grouped by reason."""
    reasons: dict[str, list[str]] = {}
    for each in skipped:
        reasons.setdefault(each.reason, []).append(each.name)
    for reason, names in reasons.items():
        yield Line(0, Text(f"Skipped: {format_names(names, _MOST_NAMES)}: {reason}"))


def _format_rule(result: RuleResult, used: CompiledConfig) -> Iterator[Line]:
    verb, style = ("matches", "green") if result.is_matched else ("does not match", "dim")
    if not result.is_evaluated:
        verb, style = "cannot be evaluated", "yellow"
    yield Line(2, Text.assemble("Rule ", (result.rule, "bold"), " ", (verb, style), f": {result.reason}"))
    for entry in result.entries:
        yield from _format_entry(entry, used.get_template(result.index, entry.kind, entry.key))


def _format_entry(entry: EntryResult, template: str) -> Iterator[Line]:
    value = "" if entry.problem else f" = {_quote(entry.value)}"
    yield Line(4, Text.assemble(entry.kind, " ", (entry.key, "bold"), value))
    if "{{" in template:
        yield Line(6, Text(f"from {_to_one_line(template)}", style="dim"))
    if entry.problem:
        gave = f"result {_quote(entry.rendered)}: " if entry.rendered else ""
        yield Line(6, Text.assemble(("skipped", "red"), f": {gave}{entry.problem}"))
    elif entry.rendered != entry.value:
        yield Line(6, Text(f"converted from {_quote(entry.rendered)}", style="dim"))


def _format_plan(preview: Preview) -> Iterator[Line]:
    plan = preview.plan
    match plan.outcome:
        case "not-ours":
            yield Line(2, Text.assemble(("Not managed", "yellow"), f": {plan.reason}"))
        case "blocked":
            yield Line(2, Text.assemble(("Not initialized yet", "red"), f": {plan.reason}"))
    if preview.changes:
        yield Line(2, Text("Changes", style="bold"))
        yield from format_changes(preview.changes)
    elif plan.outcome not in ("not-ours", "blocked"):
        yield Line(2, Text("No changes; kept keys stay as they are" if preview.kept_keys else "No changes"))
    if preview.kept_keys:
        yield Line(2, Text("Kept keys", style="bold"))
        for report in preview.kept_keys:
            yield from (line._replace(indent=4 + line.indent) for line in format_kept_key(report))
    yield from _format_notices(preview.notices)


def _format_group(group: Sequence[NodeDifference]) -> Iterator[Line]:
    heading = format_names((each.name for each in group), _MOST_NAMES)
    counted = "" if len(group) == 1 else f"  {len(group)} nodes"
    yield Line(0, Text.assemble((heading, "bold"), counted))
    yield from format_changes(group[0].changes)
    yield from _format_notices(group[0].notices)


def _format_totals(different: Sequence[NodeDifference]) -> Iterator[Line]:
    """Yield how many nodes each key changes on: the only readable view of a thousand nodes."""
    if len(group_equal(different)) < 2:
        return
    counts: Counter[tuple[str, str]] = Counter()
    for each in different:
        counts.update({(one.diff_mark, f"{one.kind} {one.key}".rstrip()) for one in each.changes})
        counts.update({("!", f"Event {notice.reason}") for notice in each.notices})
    yield Line(0, Text("Total", style="bold"))
    for (mark, subject), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        yield Line(4, Text(f"{mark} {subject}: {pluralize(count, 'node')}", style=_MARKS.get(mark, "yellow")))
    yield Line(0, Text())


def format_changes(found: Iterable[NodeChange]) -> Iterator[Line]:
    """Yield one line per change of a Node."""
    for change in found:
        yield Line(4, Text(f"{change.diff_mark} {_describe_change(change)}", style=_MARKS[change.diff_mark]))


def _format_notices(notices: Iterable[Notice]) -> Iterator[Line]:
    for notice in notices:
        yield Line(2, Text.assemble("Event ", (notice.reason, "yellow"), f": {notice.message}"))


def _describe_change(change: NodeChange) -> str:
    if change.kind == "record":
        return "ownership record only"
    if change.kind == "condition":
        return f"condition {change.before or change.after}"
    name = f"{change.kind} {change.key}" if change.key else change.kind
    values = [value for value in (change.before, change.after) if value is not None]
    if change.kind == "taint":
        key, _, effect = change.key.rpartition(":")
        return f"taint {' -> '.join(_format_taint(key, value, effect) for value in values)}"
    if change.kind in ("address", "order of addresses"):
        return f"{change.kind} {' -> '.join(values)}"
    return f"{name}{' = ' if change.key else ' '}{' -> '.join(map(_quote, values))}"


def _format_taint(key: str, value: str, effect: str) -> str:
    """Return the taint in the notation of kubectl."""
    return f"{key}={value}:{effect}" if value else f"{key}:{effect}"


def _quote(value: str) -> str:
    """Return the value, quoted unless it is unambiguous."""
    plain = value and value.isprintable() and " " not in value.strip() and value == value.strip()
    return _to_one_line(value) if plain else f'"{_to_one_line(value)}"'


def _to_one_line(text: str) -> str:
    line = " ".join(text.split()) if "\n" in text else text
    return line if len(line) <= _LONGEST else truncate_line(line)


def previews_to_json(
    previews: Sequence[Preview], skipped: Sequence[SkippedNode], used: CompiledConfig
) -> dict[str, Any]:
    """Return the JSON document.

    `patch` is the JSON Patch of the Node, `statusPatch` the strategic merge patch of its status.
    """
    nodes = [
        _difference_to_json(preview)
        | {
            "outcome": preview.plan.outcome,
            "reason": preview.plan.reason,
            "rules": [_rule_to_json(result, used) for result in preview.effects.results],
            "keptKeys": preview.kept_keys,
            "patch": preview.node_patch,
            "statusPatch": preview.status_patch,
        }
        for preview in previews
    ]
    return {"config": used.source, "nodes": nodes, "leftOut": skipped}


def comparison_to_json(comparison: Comparison, skipped: Sequence[SkippedNode]) -> dict[str, Any]:
    """Return the nodes that would change in full, the others by name."""
    return {
        "config": comparison.new,
        "against": comparison.old,
        "nodes": list(map(_difference_to_json, comparison.different)),
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
            msgspec.structs.asdict(entry)
            | {"template": used.get_template(result.index, entry.kind, entry.key)}
            for entry in result.entries
        ],
    }


def _difference_to_json(each: NodeDifference) -> dict[str, Any]:
    return {
        "name": each.name,
        "platform": each.platform,
        "changes": each.changes,
        "events": [{"reason": notice.reason, "message": notice.message} for notice in each.notices],
    }
