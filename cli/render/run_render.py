"""Reads the files, gathers the nodes and prints the previews; writes nothing to the cluster."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from cli.cluster.kept_keys import NO_MANAGERS
from cli.command_exit import EXIT_FAILED, CommandError
from cli.lines import Line, print_json, print_lines
from cli.render import text
from cli.render.as_json import comparison_to_json, previews_to_json
from cli.render.compiled_config import CompiledConfig, read_config
from cli.render.facts_file import encode_facts, load_samples
from cli.render.node_selection import GatheredNodes, NodeSelection, SkippedNode, gather_nodes
from cli.render.preview import compare, preview_node
from cli.table import format_table
from libs.common.cloud_config.fact_fields import FIELDS, TalosResource, required_resources

EXIT_UNCHANGED, EXIT_CHANGES = 0, 1
_EVERYTHING: Final[frozenset[TalosResource]] = frozenset(field.resource for field in FIELDS if field.resource)


class RenderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The files, the nodes and the output of one run."""

    file: Path
    against: Path | None
    selection: NodeSelection
    as_json: bool
    exit_code: bool
    save_facts: Path | None


def run_render(options: RenderOptions) -> int:
    """Print the previews or the comparison and return the exit status. Raises CommandError."""
    used = read_config(options.file)
    old = read_config(options.against) if options.against else None
    rules = [*used.document.rules, *(old.document.rules if old else ())]
    gathered = gather_nodes(
        options.selection,
        prefer_ipv6=used.config.prefer_ipv6,
        resources=_EVERYTHING if options.save_facts else required_resources(rules),
    )
    if options.save_facts:
        _save_facts(gathered, options.save_facts)
    is_different = (
        _show_comparison(options, gathered, old, used) if old else _show_previews(options, gathered, used)
    )
    if any(not each.expected for each in gathered.skipped):
        return EXIT_FAILED
    return EXIT_CHANGES if options.exit_code and is_different else EXIT_UNCHANGED


def print_samples() -> None:
    """Print one line per sample."""
    found = [(platform, node.name, node.facts.platform) for platform, node in load_samples().items()]
    rows = [(platform, name, at.region, at.zone, at.instance_type) for platform, name, at in found]
    header = ("PLATFORM", "NODE", "REGION", "ZONE", "INSTANCE TYPE")
    print_lines(format_table(header, [list(map(Text, row)) for row in rows]), Console(highlight=False))


def _save_facts(gathered: GatheredNodes, path: Path) -> None:
    try:
        path.write_bytes(encode_facts(gathered.nodes))
    except OSError as error:
        raise CommandError(f"{path}: cannot be written: {error.strerror or error}") from None


def _show_previews(options: RenderOptions, gathered: GatheredNodes, used: CompiledConfig) -> bool:
    now = datetime.now(UTC)
    console = Console(highlight=False)
    previews = [
        preview_node(node, used, now=now, managed_fields=gathered.managed_fields.get(node.name, NO_MANAGERS))
        for node in gathered.nodes
    ]
    if options.as_json:
        print_json(previews_to_json(previews, gathered.skipped, used))
    else:
        for number, each in enumerate(previews):
            print_lines([Line(0, Text())] if number else [], console)
            print_lines(text.format_preview(each, used), console)
        _print_skipped(gathered.skipped)
        if options.selection.all_nodes or len(previews) + len(gathered.skipped) > 1:
            print_lines(text.format_summary(previews, gathered.skipped), console)
    return any(each.changes for each in previews)


def _show_comparison(
    options: RenderOptions, gathered: GatheredNodes, old: CompiledConfig, new: CompiledConfig
) -> bool:
    comparison = compare(gathered.nodes, old, new)
    if options.as_json:
        print_json(comparison_to_json(comparison, gathered.skipped))
    else:
        print_lines(text.format_comparison(comparison), Console(highlight=False))
        _print_skipped(gathered.skipped)
    return bool(comparison.different)


def _print_skipped(skipped: tuple[SkippedNode, ...]) -> None:
    print_lines(text.format_skipped(skipped), Console(highlight=False, stderr=True))
