"""Reads the files, gathers the nodes and prints the previews; writes nothing to the cluster."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from cli.cluster.kept_keys import NO_MANAGERS
from cli.command_exit import CommandError
from cli.layout import format_table
from cli.lines import Line, print_json, print_lines
from cli.render import output
from cli.render.compiled_config import CompiledConfig, read_config
from cli.render.facts_file import encode_facts, load_samples
from cli.render.node_selection import GatheredNodes, NodeSelection, SkippedNode, gather_nodes
from cli.render.preview import compare, preview_node
from libs.common.cloud_config.fact_fields import FIELDS, TalosResource, required_resources

_EVERYTHING: Final[frozenset[TalosResource]] = frozenset(field.resource for field in FIELDS if field.resource)


def run_render(
    file: Path, against: Path | None, selection: NodeSelection, *, save_facts: Path | None, as_json: bool
) -> tuple[bool, bool]:
    """Print the previews or the comparison.

    Return whether any node would change, and whether all nodes could be read. Raises CommandError.
    """
    used = read_config(file)
    old = read_config(against) if against else None
    rules = [*used.document.rules, *(old.document.rules if old else ())]
    gathered = gather_nodes(
        selection,
        prefer_ipv6=used.config.prefer_ipv6,
        resources=_EVERYTHING if save_facts else required_resources(rules),
    )
    if save_facts:
        _save_facts(gathered, save_facts)
    if old:
        is_different = _show_comparison(gathered, old, used, as_json=as_json)
    else:
        with_summary = selection.all_nodes or len(gathered.nodes) + len(gathered.skipped) > 1
        is_different = _show_previews(gathered, used, with_summary=with_summary, as_json=as_json)
    return is_different, all(each.expected for each in gathered.skipped)


def print_samples() -> None:
    """Print one line per sample."""
    found = [(platform, node.name, node.facts.platform) for platform, node in load_samples().items()]
    rows = [(platform, name, at.region, at.zone, at.instance_type) for platform, name, at in found]
    header = ("PLATFORM", "NODE", "REGION", "ZONE", "INSTANCE TYPE")
    print_lines(format_table(header, rows, is_last_column_prose=False), Console(highlight=False))


def _save_facts(gathered: GatheredNodes, path: Path) -> None:
    try:
        path.write_bytes(encode_facts(gathered.nodes))
    except OSError as error:
        raise CommandError(f"{path}: cannot be written: {error.strerror or error}") from None


def _show_previews(
    gathered: GatheredNodes, used: CompiledConfig, *, with_summary: bool, as_json: bool
) -> bool:
    now = datetime.now(UTC)
    console = Console(highlight=False)
    previews = [
        preview_node(node, used, now=now, managed_fields=gathered.managed_fields.get(node.name, NO_MANAGERS))
        for node in gathered.nodes
    ]
    if as_json:
        print_json(output.previews_to_json(previews, gathered.skipped, used))
    else:
        for number, each in enumerate(previews):
            print_lines([Line(0, Text())] if number else [], console)
            print_lines(output.format_preview(each, used), console)
        _print_skipped(gathered.skipped)
        if with_summary:
            print_lines(output.format_summary(previews, gathered.skipped), console)
    return any(each.changes for each in previews)


def _show_comparison(
    gathered: GatheredNodes, old: CompiledConfig, new: CompiledConfig, *, as_json: bool
) -> bool:
    comparison = compare(gathered.nodes, old, new)
    if as_json:
        print_json(output.comparison_to_json(comparison, gathered.skipped))
    else:
        print_lines(output.format_comparison(comparison), Console(highlight=False))
        _print_skipped(gathered.skipped)
    return bool(comparison.different)


def _print_skipped(skipped: tuple[SkippedNode, ...]) -> None:
    print_lines(output.format_skipped(skipped), Console(highlight=False, stderr=True))
