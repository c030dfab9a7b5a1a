"""Reads the files, gathers the nodes and prints the previews; writes nothing to the cluster."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console

from cli.command_exit import CommandError
from cli.lines import format_table, print_json, print_lines
from cli.render import output
from cli.render.compiled_config import read_config
from cli.render.facts_file import encode_facts, load_samples
from cli.render.node_selection import GatheredNodes, NodeSelection, gather_nodes
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
    nodes, skipped = gathered.nodes, gathered.skipped
    if old:
        comparison = compare(nodes, old, used)
        is_different = bool(comparison.different)
        if as_json:
            print_json(output.comparison_to_json(comparison, skipped))
        else:
            print_lines(output.format_comparison(comparison))
    else:
        now = datetime.now(UTC)
        previews = [preview_node(each, used, now=now) for each in nodes]
        is_different = any(each.changes for each in previews)
        if as_json:
            print_json(output.previews_to_json(previews, skipped, used))
        else:
            with_summary = selection.all_nodes or len(nodes) + len(skipped) > 1
            print_lines(output.format_previews(previews, skipped, used, with_summary=with_summary))
    if not as_json:
        print_lines(output.format_skipped(skipped), Console(highlight=False, stderr=True))
    return is_different, all(each.expected for each in skipped)


def print_samples() -> None:
    """Print one line per sample."""
    found = [(platform, each.node.name, each.facts.platform) for platform, each in load_samples().items()]
    rows = [(platform, name, at.region, at.zone, at.instance_type) for platform, name, at in found]
    header = ("PLATFORM", "NODE", "REGION", "ZONE", "INSTANCE TYPE")
    print_lines(format_table(header, rows, is_last_column_prose=False))


def _save_facts(gathered: GatheredNodes, path: Path) -> None:
    try:
        path.write_bytes(encode_facts(gathered.nodes))
    except OSError as error:
        raise CommandError(f"{path}: cannot be written: {error.strerror or error}") from None
